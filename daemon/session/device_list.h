// The devices of the daemon, by the index under which clients know them. An index is never reused.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/device/device.h"
#include "proto/shm/event.h"

namespace rdmad::session {

class DeviceList {
 public:
  // Returns its index. The device outlives the list or is removed first.
  uint32_t Add(device::Device* device) {
    devices_.push_back(device);
    return static_cast<uint32_t>(devices_.size() - 1);
  }
  void Remove(uint32_t index) { devices_.at(index) = nullptr; }

  // Null for an index that no device has (any more).
  [[nodiscard]] device::Device* Find(uint32_t index) const noexcept {
    return index < devices_.size() ? devices_[index] : nullptr;
  }
  // shm::kNoDevice if it is not in the list.
  [[nodiscard]] uint32_t IndexOf(const device::Device* device) const noexcept {
    for (uint32_t index = 0; device != nullptr && index < devices_.size(); ++index) {
      if (devices_[index] == device) return index;
    }
    return shm::kNoDevice;
  }
  // How many are there now.
  [[nodiscard]] uint32_t count() const noexcept {
    uint32_t count = 0;
    for (const device::Device* device : devices_) count += device != nullptr ? 1 : 0;
    return count;
  }
  // Indices are below this number; some may be gone.
  [[nodiscard]] uint32_t end() const noexcept { return static_cast<uint32_t>(devices_.size()); }

 private:
  std::vector<device::Device*> devices_;
};

}  // namespace rdmad::session
