// One of a device's own addresses, as an sgid_index names it.
#pragma once

#include <cstdint>
#include <functional>

#include "daemon/base/ip_address.h"
#include "daemon/device/types.h"

namespace rdmad::soft {

struct SourceAddress {
  IpAddress address;
  device::Mtu max_mtu = device::Mtu::k4096;  // largest path MTU that the interface carries
};
// Fills `*out` for an index that is in use; false for one that is not. Any thread; does not
// allocate.
using SourceLookup = std::function<bool(uint32_t sgid_index, SourceAddress* out)>;

}  // namespace rdmad::soft
