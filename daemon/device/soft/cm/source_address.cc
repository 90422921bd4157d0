#include "daemon/device/soft/cm/source_address.h"

#include <cerrno>

namespace rdmad::soft {
namespace {

IpAddress LoopbackOf(const IpAddress& wildcard) {
  if (wildcard.is_v4()) return IpAddress::FromV4(127, 0, 0, 1);
  return IpAddress::FromV6({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
}

// An address of some device that can talk to a peer on this same host; the wildcard: none.
IpAddress LocalAddressFor(const DeviceDirectory& directory, const IpAddress& peer) {
  if (directory.FindByAddress(peer) != nullptr) return peer;
  if (!peer.is_loopback()) return IpAddress();
  for (const IpAddress& own : directory.Addresses()) {
    if (own.is_loopback() && own.is_v4() == peer.is_v4()) return own;
  }
  return IpAddress();
}

}  // namespace

int AddressErrno(const absl::Status& status) noexcept {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return -EINVAL;
    case absl::StatusCode::kPermissionDenied:
      return -EACCES;
    case absl::StatusCode::kDeadlineExceeded:
      return -ETIMEDOUT;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kNotFound:
      return -ENETUNREACH;
    default:
      return -EHOSTUNREACH;
  }
}

ChosenSource ChooseSource(const DeviceDirectory& directory, const IpAddress& bound,
                          const SocketAddress& peer, device::PortSpace space) {
  ChosenSource chosen;
  chosen.peer = peer;
  if (peer.ip.is_any()) chosen.peer.ip = bound.is_any() ? LoopbackOf(peer.ip) : bound;
  if (chosen.peer.ip.is_multicast()) {
    if (space != device::PortSpace::kUdp) {
      chosen.error = -EINVAL;
      return chosen;
    }
    if (!bound.is_any()) {
      chosen.local = bound;
      chosen.device = directory.FindByAddress(bound);
      if (chosen.device == nullptr) chosen.error = -ENODEV;
      return chosen;
    }
  }
  const absl::StatusOr<IpAddress> routed = directory.SourceAddressFor(chosen.peer.ip);
  if (!routed.ok()) {
    chosen.error = AddressErrno(routed.status());
    return chosen;
  }
  chosen.local = bound.is_any() ? *routed : bound;
  chosen.device = directory.FindByAddress(chosen.local);
  if (chosen.device == nullptr && bound.is_any()) {
    chosen.local = LocalAddressFor(directory, chosen.peer.ip);
    chosen.device = directory.FindByAddress(chosen.local);
  }
  if (chosen.device == nullptr) chosen.error = -ENODEV;
  return chosen;
}

}  // namespace rdmad::soft
