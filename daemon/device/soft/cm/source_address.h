// Which of our addresses, and so which device, a connection to a peer starts from.
#pragma once

#include "absl/status/status.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/cm/device_directory.h"

namespace rdmad::soft {

struct ChosenSource {
  int error = 0;  // negative errno as the address error event carries it, or 0
  IpAddress local;
  SocketAddress peer;  // as asked; the wildcard becomes the loopback address
  device::Device* device = nullptr;
};

// `bound` is the address that the id is bound to, or a wildcard. The kernel's route decides; but to
// a peer on this host it likes to say 127.0.0.1, and a device may well be on 127.0.0.2 only: then
// any device of ours on that loopback will do, best the peer itself. To a group (only port space
// UDP may send there) goes whoever is bound, route or not, as in the kernel. Errors: -ENETUNREACH
// (no route), -ENODEV (the route leaves by an address that no device has), -EINVAL (multicast),
// others that the route look-up gave.
[[nodiscard]] ChosenSource ChooseSource(const DeviceDirectory& directory, const IpAddress& bound,
                                        const SocketAddress& peer, device::PortSpace space);

// The errno of a failed route look-up, negative.
[[nodiscard]] int AddressErrno(const absl::Status& status) noexcept;

}  // namespace rdmad::soft
