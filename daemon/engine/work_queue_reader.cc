#include "daemon/engine/work_queue_reader.h"

#include <algorithm>
#include <bit>

#include "daemon/base/check.h"
#include "daemon/engine/shm_copy.h"

namespace rdmad::engine {
namespace {

constexpr uint8_t kMaxExtraSlots = 7;
static_assert(shm::ExtraSlotsForInline(shm::kMaxInlineBytes) == kMaxExtraSlots &&
              shm::ExtraSlotsForSges(shm::kMaxSge) <= kMaxExtraSlots);

constexpr uint8_t kKnownFlags =
    shm::kWorkSignaled | shm::kWorkSolicited | shm::kWorkFence | shm::kWorkInline;
constexpr uint8_t kLastOpcode = static_cast<uint8_t>(shm::WorkOpcode::kBindMw);
// Sends and writes are the first ones; they alone can carry inline data.
constexpr uint8_t kLastInlineOpcode = static_cast<uint8_t>(shm::WorkOpcode::kRdmaWriteWithImm);

constexpr size_t kSlotHeadBytes = offsetof(shm::WorkSlot, sges);

bool SgesFitTheirSlots(const shm::WorkSlot& slot) {
  return slot.num_sge <= shm::kMaxSge && slot.extra_slots == shm::ExtraSlotsForSges(slot.num_sge);
}

bool InlineFitsItsSlots(const shm::WorkSlot& slot) {
  return slot.num_sge == 0 && slot.inline_bytes <= shm::kMaxInlineBytes &&
         slot.extra_slots == shm::ExtraSlotsForInline(slot.inline_bytes) &&
         slot.opcode <= kLastInlineOpcode;
}

bool IsWellFormedSend(const shm::WorkSlot& slot) {
  if (slot.opcode > kLastOpcode || (slot.flags & ~kKnownFlags) != 0) return false;
  return (slot.flags & shm::kWorkInline) != 0 ? InlineFitsItsSlots(slot) : SgesFitTheirSlots(slot);
}

}  // namespace

WorkQueueReader::WorkQueueReader(std::byte* ring, uint32_t slot_count) noexcept
    : header_(reinterpret_cast<shm::WorkQueueHeader*>(ring)),
      slots_(ring + sizeof(shm::WorkQueueHeader)),
      mask_(slot_count - 1),
      slot_count_(slot_count) {
  RD_CHECK(ring != nullptr && std::has_single_bit(slot_count));
}

bool WorkQueueReader::Refresh() noexcept {
  if (header_ == nullptr) return true;
  if (corrupt_) return false;
  const uint32_t tail = header_->tail.load(std::memory_order_acquire);  // pairs with Publish()
  // Also catches a tail that went back behind what was read, or behind what was already seen.
  if (tail - head_ > slot_count_ || tail - head_ < unread_slots()) {
    corrupt_ = true;
    return false;
  }
  seen_tail_ = tail;
  return true;
}

ReadResult WorkQueueReader::CopyNext(shm::WorkSlot& copy) noexcept {
  if (corrupt_) return ReadResult::kCorrupt;
  if (head_ == seen_tail_) return ReadResult::kEmpty;
  CopyFromShared(&copy, SlotAt(head_), kSlotHeadBytes);
  if (copy.extra_slots > kMaxExtraSlots || 1u + copy.extra_slots > unread_slots()) {
    corrupt_ = true;
    return ReadResult::kCorrupt;
  }
  return ReadResult::kOk;
}

ReadResult WorkQueueReader::NextSend(WrScratch& scratch, device::SendWr& wr) noexcept {
  shm::WorkSlot slot;
  const ReadResult result = CopyNext(slot);
  if (result != ReadResult::kOk) return result;
  wr.wr_id = slot.wr_id;
  if (!IsWellFormedSend(slot)) {
    head_ += 1u + slot.extra_slots;
    return ReadResult::kMalformed;
  }
  wr.opcode = static_cast<device::WrOpcode>(slot.opcode);
  wr.flags = slot.flags;
  wr.imm_be = slot.imm_be;
  wr.remote_addr = slot.remote_addr;
  wr.rkey = slot.rkey;
  wr.compare_add = slot.compare_add;
  wr.swap = slot.swap;
  wr.bind_lkey = slot.bind_lkey;
  wr.ah = nullptr;
  ah_handle_ = slot.ah_handle;
  wr.remote_qpn = slot.remote_qpn;
  wr.remote_qkey = slot.remote_qkey;
  if ((slot.flags & shm::kWorkInline) != 0) {
    wr.sges = {};
    wr.inline_bytes = slot.inline_bytes;
    wr.inline_data = InlinePieces(slot.inline_bytes);
  } else {
    CopySges(slot.num_sge, scratch);
    wr.sges = std::span(scratch.sges.data(), slot.num_sge);
    wr.inline_bytes = 0;
    wr.inline_data = {};
  }
  head_ += 1u + slot.extra_slots;
  return ReadResult::kOk;
}

ReadResult WorkQueueReader::NextRecv(WrScratch& scratch, device::RecvWr& wr) noexcept {
  shm::WorkSlot slot;
  const ReadResult result = CopyNext(slot);
  if (result != ReadResult::kOk) return result;
  wr.wr_id = slot.wr_id;
  const bool well_formed = (slot.flags & shm::kWorkInline) == 0 && SgesFitTheirSlots(slot);
  if (well_formed) {
    CopySges(slot.num_sge, scratch);
    wr.sges = std::span(scratch.sges.data(), slot.num_sge);
  }
  last_recv_slots_ = 1u + slot.extra_slots;
  head_ += last_recv_slots_;
  return well_formed ? ReadResult::kOk : ReadResult::kMalformed;
}

void WorkQueueReader::CopySges(uint32_t num_sge, WrScratch& scratch) const noexcept {
  const uint32_t first = std::min(num_sge, shm::kSgesInFirstSlot);
  CopyFromShared(scratch.sges.data(), SlotAt(head_) + kSlotHeadBytes, first * sizeof(shm::WorkSge));
  uint32_t index = head_ + 1;
  for (uint32_t done = first; done < num_sge; done += shm::kSgesPerExtraSlot, ++index) {
    const uint32_t count = std::min(num_sge - done, shm::kSgesPerExtraSlot);
    CopyFromShared(&scratch.sges[done], SlotAt(index), count * sizeof(shm::WorkSge));
  }
}

device::InlineData WorkQueueReader::InlinePieces(uint32_t bytes) const noexcept {
  device::InlineData data;
  const uint32_t first = std::min(bytes, shm::kInlineInFirstSlot);
  data.pieces[0] = {SlotAt(head_) + kSlotHeadBytes, first};
  const uint32_t rest = bytes - first;
  const uint32_t next = (head_ + 1) & mask_;
  const uint32_t until_wrap = std::min(rest, (slot_count_ - next) * shm::kSlotBytes);
  data.pieces[1] = {SlotAt(next), until_wrap};
  data.pieces[2] = {slots_, rest - until_wrap};
  return data;
}

void WorkQueueReader::PublishHead() noexcept {
  // Release: the client may see the slots as read.
  if (header_ != nullptr) header_->head.store(head_, std::memory_order_release);
}

void WorkQueueReader::Forget() noexcept {
  if (header_ == nullptr) return;
  head_ = seen_tail_ = header_->tail.load(std::memory_order_acquire);
  corrupt_ = false;
  PublishHead();
}

}  // namespace rdmad::engine
