#include "tests/integration/counters.h"

#include <cstdlib>
#include <iostream>

#include "daemon/base/status_macros.h"
#include "tests/support/raw_client.h"

namespace rdmad::testing {

absl::StatusOr<Counters> Counters::Of(const DaemonProcess& daemon) {
  RD_ASSIGN_OR_RETURN(const RawClient observer, RawClient::Attach(daemon.run_dir(), "observer"));
  v1::ListDevicesReply reply;
  RD_RETURN_IF_ERROR(
      observer.Call(observer.admin(), &v1::AdminService::Stub::ListDevices, {}, &reply));
  Counters counters;
  for (const v1::DeviceStatus& device : reply.devices()) {
    for (const v1::Counter& counter : device.counters()) {
      counters.values_[counter.name()] += counter.value();
    }
  }
  return counters;
}

uint64_t Counters::Get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) {
    std::cerr << "no counter named " << name << "\n";
    std::abort();
  }
  return found->second;
}

}  // namespace rdmad::testing
