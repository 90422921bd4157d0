// How packets that reached the wrong engine get to the one whose QP they are for.
//
// Sockets are steered by QP number (udp_port_group.h), but a batch that the kernel has merged goes
// whole where its first packet points. So each engine has a ring, into which the others put copies
// of what is its own. All ICRCs are good by then. Nobody waits: what finds the ring full is dropped,
// counted by who put it there, and sent again by its sender, as if the network had lost it.
//
// Any number of engines push, one takes; no locks. Indices run free and wrap modulo 2^32. A slot's
// turn says who may touch it: `index` is the producer's that has claimed that index, `index + 1` the
// consumer's. Source: D. Vyukov, bounded queue of many producers.
//
// Sleeping: the taker says that it is about to, then looks once more; a pusher publishes, then looks
// whether the taker sleeps, and only then rings. All four are sequentially consistent, so one of
// them sees the other.
//
// Owner: the daemon; outlives the data paths.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class StrayRing {
 public:
  static constexpr uint32_t kDefaultCapacity = 256;

  // `capacity` is a power of two. Errors: ResourceExhausted (no descriptor for the eventfd).
  static absl::StatusOr<std::unique_ptr<StrayRing>> Create(uint32_t capacity = kDefaultCapacity);

  // Thread: any engine. Copies the packet. False: there is no room.
  [[nodiscard]] bool Push(const Flow& flow, const wire::PacketView& packet) noexcept;

  // Thread: the engine that takes, from here on.
  // Calls `take(flow, packet)` for up to `limit` packets; returns for how many. What the packet points
  // to is valid during the call.
  template <typename Take>
  int TakeUpTo(int limit, Take take) noexcept {
    if (slept_ || bell_owed_) WakeUp();
    int taken = 0;
    for (; taken < limit && !Empty(); ++taken) {
      Slot& slot = slots_[head_ & mask_];
      wire::PacketView packet;
      if (wire::ParsePacket({slot.bytes.data(), slot.size_bytes}, &packet) ==
          wire::DropReason::kNone) {
        take(slot.flow, packet);
      }
      // Free for whoever claims this index a round later; pairs with Push().
      slot.turn.store(head_ + mask_ + 1, std::memory_order_release);
      ++head_;
    }
    return taken;
  }
  // Readable once somebody has pushed after a PrepareSleep() that said true.
  [[nodiscard]] int poll_fd() const noexcept { return bell_.get(); }
  // The last thing before a wait. False: there is something to take.
  [[nodiscard]] bool PrepareSleep() noexcept;

 private:
  struct Slot {
    std::atomic<uint32_t> turn;
    uint32_t size_bytes;
    Flow flow;
    std::array<uint8_t, wire::kMaxPacketBytes> bytes;
  };

  StrayRing(uint32_t capacity, UniqueFd bell);
  [[nodiscard]] bool Empty() const noexcept {
    // Pairs with Push(); sequentially consistent for PrepareSleep().
    return slots_[head_ & mask_].turn.load(std::memory_order_seq_cst) != head_ + 1;
  }
  void WakeUp() noexcept;

  const UniqueFd bell_;  // eventfd
  const uint32_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint32_t> tail_{0};  // next index to claim; those who push
  alignas(64) std::atomic<bool> asleep_{false};
  // The taker's.
  uint32_t head_ = 0;  // next index to take
  bool slept_ = false;
  bool bell_owed_ = false;  // somebody has rung or is about to
};

}  // namespace rdmad::soft
