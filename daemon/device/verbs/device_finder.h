// Finds our device for an ibv_context, whoever opened that: librdmacm opens its own.
//
// Thread: control.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"

namespace rdmad::verbs {

class DeviceFinder {
 public:
  virtual ~DeviceFinder() = default;
  // By the kernel's name for it ("mlx5_0") and the port's number; null if it is not served or was
  // removed.
  virtual device::Device* FindPort(std::string_view ibv_name, uint8_t port) const = 0;
  virtual device::Device* FindByAddress(const IpAddress& address) const = 0;
};

}  // namespace rdmad::verbs
