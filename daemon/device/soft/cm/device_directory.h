// How the connection manager finds devices and routes. The soft device's factory implements it.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"

namespace rdmad::soft {

// Thread: control. Owner: whoever made it; it outlives the connection manager.
class DeviceDirectory {
 public:
  virtual ~DeviceDirectory() = default;

  // The device that has this address (scope included) now; null: none.
  virtual device::Device* FindByAddress(const IpAddress& address) const = 0;

  // Every address that some device has.
  virtual std::vector<IpAddress> Addresses() const = 0;

  // The address from which the kernel would send to `peer` (connect(2) and getsockname(2) on a UDP
  // socket, or a route look-up). Errors: any; their code becomes the errno of the address error,
  // see AddressErrno().
  virtual absl::StatusOr<IpAddress> SourceAddressFor(const IpAddress& peer) const = 0;

  // What IP packets from `local` to `peer` may be long, by the kernel's route; 0: it does not say.
  virtual uint32_t RouteMtuBytes(const IpAddress& /*local*/, const IpAddress& /*peer*/) const {
    return 0;
  }
};

}  // namespace rdmad::soft
