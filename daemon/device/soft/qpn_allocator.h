// QP numbers: 24-bit, unique in the process, and slow to come back.
//
// A number is in a peer's hands as long as packets for it may be on the way, so a freed one rests
// for at least `quarantine` before it can be given out again, and even then only after all numbers
// that have rested longer or were never used: numbers go round. The start is random, so that a
// restarted daemon does not answer to the numbers of its former life. The low bits name the engine
// that the QP lives on, for steering packets by a filter on the destination QP. 0 and 1
// (management), 0xffffff (multicast) are never given out. Source: IBTA vol. 1, Queue Pairs,
// reserved numbers; Communication Management, TimeWait.
//
// Thread: control. Owner: the daemon (one for all soft devices).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/max_engines.h"
#include "daemon/device/types.h"

namespace rdmad::soft {

class QpnAllocator {
 public:
  static constexpr int kEngineBits = 4;
  static constexpr uint32_t kEngines = 1u << kEngineBits;
  static_assert(kEngines == device::kMaxEngines);
  static constexpr uint32_t kNumbersPerEngine = 1u << (24 - kEngineBits);
  static constexpr device::TimeNs kQuarantineNs = 4'000'000'000;

  // `seed` decides where counting starts.
  explicit QpnAllocator(uint64_t seed);

  // A number whose low kEngineBits are `engine_index`.
  // Errors: ResourceExhausted (all of this engine's numbers are in use or in quarantine).
  absl::StatusOr<uint32_t> Allocate(uint32_t engine_index, device::TimeNs now);
  // `qpn` was allocated and its QP is gone.
  void Free(uint32_t qpn, device::TimeNs now);

  [[nodiscard]] uint32_t in_use() const noexcept { return in_use_; }

 private:
  struct Resting {
    uint32_t qpn;
    device::TimeNs until;
  };
  struct Engine {
    uint32_t next;                // counts through all numbers, wraps
    std::deque<Resting> resting;  // oldest first
  };

  [[nodiscard]] bool Taken(uint32_t qpn) const noexcept {
    return (taken_[qpn >> 6] >> (qpn & 63) & 1) != 0;
  }
  void SetTaken(uint32_t qpn, bool taken) noexcept;
  void EndQuarantine(Engine& engine, device::TimeNs now);

  std::vector<Engine> engines_;
  std::vector<uint64_t> taken_;  // one bit per number: in use or resting
  uint32_t in_use_ = 0;
};

}  // namespace rdmad::soft
