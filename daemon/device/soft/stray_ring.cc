#include "daemon/device/soft/stray_ring.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/check.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<StrayRing>> StrayRing::Create(uint32_t capacity) {
  UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) return absl::ErrnoToStatus(errno, "stray_ring: eventfd");
  return std::unique_ptr<StrayRing>(new StrayRing(capacity, std::move(bell)));
}

StrayRing::StrayRing(uint32_t capacity, UniqueFd bell)
    : bell_(std::move(bell)), mask_(capacity - 1), slots_(new Slot[capacity]) {
  RD_CHECK(std::has_single_bit(capacity));
  for (uint32_t i = 0; i < capacity; ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
}

bool StrayRing::Push(const Flow& flow, const wire::PacketView& packet) noexcept {
  const size_t size_bytes = packet.icrc_input.size() + wire::kIcrcBytes;
  if (size_bytes > wire::kMaxPacketBytes) return false;  // ParsePacket() lets none pass
  uint32_t index = tail_.load(std::memory_order_relaxed);
  while (true) {
    const uint32_t turn =
        slots_[index & mask_].turn.load(std::memory_order_acquire);  // pairs with TakeUpTo()
    if (turn == index) {
      // Only claims; what the slot's turn says orders the rest.
      if (tail_.compare_exchange_weak(index, index + 1, std::memory_order_relaxed)) break;
    } else if (static_cast<int32_t>(turn - index) < 0) {
      return false;
    } else {
      index = tail_.load(std::memory_order_relaxed);
    }
  }
  Slot& slot = slots_[index & mask_];
  slot.flow = flow;
  slot.size_bytes = static_cast<uint32_t>(size_bytes);
  // The ICRC was checked; its place is all that the form needs.
  std::fill_n(std::copy(packet.icrc_input.begin(), packet.icrc_input.end(), slot.bytes.begin()),
              wire::kIcrcBytes, uint8_t{0});
  slot.turn.store(index + 1, std::memory_order_seq_cst);  // pairs with Empty()
  // One of those who push wakes the sleeper; pairs with PrepareSleep().
  if (asleep_.load(std::memory_order_seq_cst) &&
      asleep_.exchange(false, std::memory_order_seq_cst)) {
    const uint64_t one = 1;
    // It fails only if the counter would overflow, and then the descriptor is readable anyway.
    [[maybe_unused]] const ssize_t written = ::write(bell_.get(), &one, sizeof(one));
  }
  return true;
}

bool StrayRing::PrepareSleep() noexcept {
  if (slept_) WakeUp();  // it was asked before, and nothing was taken since
  if (!Empty()) return false;
  asleep_.store(true, std::memory_order_seq_cst);  // pairs with Push()
  slept_ = true;
  return Empty();
}

void StrayRing::WakeUp() noexcept {
  // If it was taken back already, a ring of the bell is here or on its way.
  if (std::exchange(slept_, false)) {
    bell_owed_ |= !asleep_.exchange(false, std::memory_order_seq_cst);
  }
  uint64_t rings;
  if (bell_owed_ && ::read(bell_.get(), &rings, sizeof(rings)) == sizeof(rings)) bell_owed_ = false;
}

}  // namespace rdmad::soft
