// A protection domain of the soft device: an identity that regions and QPs carry and every
// translation compares.
#pragma once

#include <atomic>
#include <cstdint>

#include "daemon/device/device.h"

namespace rdmad::soft {

// Not final: the device derives from it, to know when one has gone.
class SoftPd : public device::Pd {
 public:
  SoftPd() : id_(NextId()) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}

  // Never 0 and never used again in this process.
  uint64_t id() const noexcept { return id_; }

 private:
  static uint64_t NextId() noexcept {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;  // only the number matters
  }
  const uint64_t id_;
};

}  // namespace rdmad::soft
