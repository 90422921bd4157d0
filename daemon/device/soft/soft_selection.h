// Which of a host's interfaces and addresses are to be soft devices, by the configuration.
//
// A pure function of what the host has now; asked again whenever that changes. One device per
// interface, with all its addresses that are asked for; loopback addresses are a device each, so
// that two daemons can share a host on 127.0.0.2 and 127.0.0.3.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/net_config.h"

namespace rdmad::soft {

// Why something that was wanted is not there.
struct SoftDeviceProblem {
  std::string what;  // address or interface
  std::string why;   // one line, with what to do

  friend bool operator==(const SoftDeviceProblem&, const SoftDeviceProblem&) = default;
};

// What a device is recognized by for as long as its interface exists.
struct SoftDeviceKey {
  uint32_t interface_index = 0;
  IpAddress loopback;  // the one address of a loopback address's device, else ::

  friend bool operator==(const SoftDeviceKey&, const SoftDeviceKey&) = default;
};

struct SelectedDevice {
  SoftDeviceKey key;
  const NetInterface* interface;
  std::vector<IpAddress> addresses;  // usable now; may be none
  bool by_name = false;              // the configuration names the interface
  bool by_address = false;           // the configuration names an address of it
};

struct SoftSelection {
  std::vector<SelectedDevice> devices;  // in the order of the configuration, or of the interfaces
  std::vector<SoftDeviceProblem> problems;
};

// `only` as in SoftDevicesConfig. The result points into `interfaces`. Interfaces that are down are
// selected, too: a device that exists keeps its addresses while its link is down.
SoftSelection SelectDevices(const std::vector<std::string>& only,
                            const std::vector<NetInterface>& interfaces);

}  // namespace rdmad::soft
