// The client's end of a work queue (proto/shm/work_queue.h): encodes WRs into slots and counts how
// many are outstanding.
//
// Depth counts WRs. A send WR keeps its place until a completion of its queue that is at least as
// new was polled: the poller calls RetireUpTo(Cqe::wqe_count). A receive WR keeps its place until
// its own completion was polled: RetireOne(). The daemon gave the ring enough slots for `depth` WRs
// of the largest kind, so whoever is within the depth is within the ring.
//
// Posting is two steps, so that a chain costs one publication and one doorbell:
//   PostSend() ... PostSend()  encode into free slots, unseen by the engine;
//   Publish()                  makes them visible; then ring the doorbell (doorbell_ringer.h).
//
// Thread: Post..., Publish and Reset under the queue's lock; Retire... from whoever polls the CQ.
// Results are as those of ibv_post_send(3): 0 or a positive errno; what failed was not queued.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "proto/shm/work_queue.h"

namespace rdmad::sdk {

// What of a queue the daemon granted.
struct WorkQueueLimits {
  uint32_t depth = 0;  // WRs
  uint32_t max_sge = 0;
  uint32_t max_inline_bytes = 0;  // send queues
};

// A send WR to be encoded. With kWorkInline in `flags`, the bytes named by `sges` are copied into
// the slots now (they are the caller's own addresses, lkeys are ignored), as in verbs.
struct SendRequest {
  uint64_t wr_id = 0;
  shm::WorkOpcode opcode = shm::WorkOpcode::kSend;
  uint8_t flags = 0;  // shm::kWork...
  std::span<const shm::WorkSge> sges;
  uint32_t imm_be = 0;  // or the rkey to invalidate
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t bind_lkey = 0;
  uint32_t ah_handle = 0;
  uint32_t remote_qpn = 0;
  uint32_t remote_qkey = 0;
};

class WorkQueueWriter {
 public:
  // `ring`: the queue's header in the mapped arena, as the daemon placed it; outlives the writer.
  // `slot_count`: a power of two.
  WorkQueueWriter(shm::WorkQueueHeader* ring, uint32_t slot_count,
                  const WorkQueueLimits& limits) noexcept
      : header_(ring),
        slots_(reinterpret_cast<std::byte*>(ring + 1)),
        mask_(slot_count - 1),
        max_sge_(std::min(limits.max_sge, shm::kMaxSge)),
        max_inline_bytes_(std::min(limits.max_inline_bytes, shm::kMaxInlineBytes)),
        // Never beyond the ring, whatever the reply said.
        depth_(std::min(limits.depth,
                        slot_count / (1 + std::max(shm::ExtraSlotsForSges(max_sge_),
                                                   shm::ExtraSlotsForInline(max_inline_bytes_))))),
        tail_(ring->tail.load(std::memory_order_relaxed)) {}

  WorkQueueWriter(const WorkQueueWriter&) = delete;
  WorkQueueWriter& operator=(const WorkQueueWriter&) = delete;

  // ENOMEM: the queue is full. EINVAL: too many SGEs, too many inline bytes, or inline where
  // the operation carries nothing out.
  [[nodiscard]] int PostSend(const SendRequest& request) noexcept;
  // ENOMEM, EINVAL: as above.
  [[nodiscard]] int PostRecv(uint64_t wr_id, std::span<const shm::WorkSge> sges) noexcept;

  // Lets the engine see everything posted so far. Pairs with the engine's acquire load of `tail`.
  void Publish() noexcept { header_->tail.store(tail_, std::memory_order_release); }

  // A send completion with this Cqe::wqe_count was polled. Numbers that make no sense are ignored.
  void RetireUpTo(uint32_t wqe_count) noexcept {
    const uint32_t retired = retired_.load(std::memory_order_relaxed);
    if (wqe_count - retired > depth_) return;  // old, or not ours
    // Release, paired with HasRoom(): the slots' bytes were read before their place is used again.
    retired_.store(wqe_count, std::memory_order_release);
  }
  // A receive completion of this queue was polled. (An SRQ has several pollers.)
  void RetireOne() noexcept { retired_.fetch_add(1, std::memory_order_release); }

  // The QP has entered RESET: the engine has forgotten everything that was posted, and wqe_count
  // starts again at 0. Entries of before must have been purged from the CQ (CqReader::Purge).
  void Reset() noexcept {
    tail_ = header_->tail.load(std::memory_order_relaxed);  // drops what was not published
    posted_ = 0;
    retired_.store(0, std::memory_order_release);
  }

  uint32_t depth() const noexcept { return depth_; }
  // WRs that were posted and not retired.
  uint32_t outstanding() const noexcept {
    return posted_ - retired_.load(std::memory_order_acquire);
  }

 private:
  bool HasRoom() const noexcept { return outstanding() < depth_; }

  shm::WorkSlot* SlotAt(uint32_t index) const noexcept {
    return reinterpret_cast<shm::WorkSlot*>(slots_ + size_t{index & mask_} * shm::kSlotBytes);
  }

  // Where the payload of the WR whose first slot is `tail_` goes: SGEs and inline bytes start in
  // the first slot and go on in the following ones, which may wrap.
  void EncodeSges(std::span<const shm::WorkSge> sges) noexcept;
  void EncodeInline(std::span<const shm::WorkSge> sges) noexcept;

  shm::WorkQueueHeader* const header_;
  std::byte* const slots_;
  const uint32_t mask_;
  const uint32_t max_sge_;
  const uint32_t max_inline_bytes_;
  const uint32_t depth_;
  uint32_t tail_;        // next slot to fill
  uint32_t posted_ = 0;  // WRs, modulo 2^32
  // On a line of its own: the poller writes it.
  alignas(shm::kCacheLine) std::atomic<uint32_t> retired_{0};
};

inline int WorkQueueWriter::PostSend(const SendRequest& request) noexcept {
  if (!HasRoom()) return ENOMEM;
  if (request.sges.size() > max_sge_) return EINVAL;
  const bool is_inline = (request.flags & shm::kWorkInline) != 0;
  uint64_t inline_bytes = 0;
  if (is_inline) {
    // Send and write are the first five; the others take nothing along.
    if (request.opcode > shm::WorkOpcode::kRdmaWriteWithImm) return EINVAL;
    for (const shm::WorkSge& sge : request.sges) inline_bytes += sge.length_bytes;
    if (inline_bytes > max_inline_bytes_) return EINVAL;
  }
  const uint32_t num_sge = is_inline ? 0 : static_cast<uint32_t>(request.sges.size());
  const uint32_t extra_slots = is_inline
                                   ? shm::ExtraSlotsForInline(static_cast<uint32_t>(inline_bytes))
                                   : shm::ExtraSlotsForSges(num_sge);

  shm::WorkSlot* const slot = SlotAt(tail_);
  slot->wr_id = request.wr_id;
  slot->opcode = static_cast<uint8_t>(request.opcode);
  slot->flags = request.flags;
  slot->num_sge = static_cast<uint8_t>(num_sge);
  slot->extra_slots = static_cast<uint8_t>(extra_slots);
  slot->imm_be = request.imm_be;
  slot->remote_addr = request.remote_addr;
  slot->rkey = request.rkey;
  slot->inline_bytes = static_cast<uint32_t>(inline_bytes);
  slot->compare_add = request.compare_add;
  slot->swap = request.swap;
  slot->bind_lkey = request.bind_lkey;
  slot->ah_handle = request.ah_handle;
  slot->remote_qpn = request.remote_qpn;
  slot->remote_qkey = request.remote_qkey;
  if (is_inline) {
    EncodeInline(request.sges);
  } else {
    EncodeSges(request.sges);
  }
  tail_ += 1 + extra_slots;
  ++posted_;
  return 0;
}

inline int WorkQueueWriter::PostRecv(uint64_t wr_id, std::span<const shm::WorkSge> sges) noexcept {
  if (!HasRoom()) return ENOMEM;
  if (sges.size() > max_sge_) return EINVAL;
  const uint32_t num_sge = static_cast<uint32_t>(sges.size());
  const uint32_t extra_slots = shm::ExtraSlotsForSges(num_sge);
  shm::WorkSlot* const slot = SlotAt(tail_);
  slot->wr_id = wr_id;
  slot->opcode = 0;
  slot->flags = 0;
  slot->num_sge = static_cast<uint8_t>(num_sge);
  slot->extra_slots = static_cast<uint8_t>(extra_slots);
  slot->inline_bytes = 0;
  EncodeSges(sges);
  tail_ += 1 + extra_slots;
  ++posted_;
  return 0;
}

inline void WorkQueueWriter::EncodeSges(std::span<const shm::WorkSge> sges) noexcept {
  const size_t first = std::min<size_t>(sges.size(), shm::kSgesInFirstSlot);
  std::copy_n(sges.begin(), first, SlotAt(tail_)->sges);
  uint32_t index = tail_ + 1;
  for (size_t done = first; done < sges.size(); done += shm::kSgesPerExtraSlot, ++index) {
    const size_t count = std::min<size_t>(sges.size() - done, shm::kSgesPerExtraSlot);
    std::memcpy(SlotAt(index), &sges[done], count * sizeof(shm::WorkSge));
  }
}

inline void WorkQueueWriter::EncodeInline(std::span<const shm::WorkSge> sges) noexcept {
  std::byte* to = reinterpret_cast<std::byte*>(SlotAt(tail_)->sges);
  size_t room = shm::kInlineInFirstSlot;
  uint32_t index = tail_ + 1;
  for (const shm::WorkSge& sge : sges) {
    const std::byte* from = reinterpret_cast<const std::byte*>(sge.addr);
    size_t left = sge.length_bytes;
    while (left != 0) {
      if (room == 0) {
        to = reinterpret_cast<std::byte*>(SlotAt(index++));
        room = shm::kSlotBytes;
      }
      const size_t count = std::min(left, room);
      std::memcpy(to, from, count);
      to += count;
      from += count;
      room -= count;
      left -= count;
    }
  }
}

}  // namespace rdmad::sdk
