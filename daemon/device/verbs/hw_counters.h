// The counters that the kernel and the hardware keep of a device's port, from sysfs: what
// `rdma statistic show` and perfquery print.
//
// Source: Documentation/ABI/stable/sysfs-class-infiniband in the kernel's tree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/device/device.h"

namespace rdmad::verbs {

// Those that are there; none if the device is gone. Names are the kernel's, with "hw_" in front.
// At most 128. `sysfs_root` is for tests. Thread: any; reads files.
std::vector<device::CounterValue> ReadHardwareCounters(
    const std::string& device_name, uint32_t port,
    const std::string& sysfs_root = "/sys/class/infiniband");

}  // namespace rdmad::verbs
