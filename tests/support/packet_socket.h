// Packet sockets (packet(7)): all Ethernet frames of one interface, as they are.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "tests/support/net_namespace.h"

namespace rdmad::testing {

// A non-blocking socket with a large buffer, which gets what the interface receives, and with
// `outgoing` what it sends as well. Errors: PermissionDenied, NotFound (no such interface).
absl::StatusOr<UniqueFd> OpenPacketSocket(const NetNamespace& network, const std::string& interface,
                                          bool outgoing = false);

// One frame; 0 when there is none now.
ssize_t ReceiveFrame(int fd, std::span<uint8_t> buffer) noexcept;

// How many frames the socket had no room for since the last call.
uint32_t TakeDropCount(int fd) noexcept;

// Whether it is UDP to port 4791, over IPv4 or IPv6 without options.
bool IsRoceFrame(std::span<const uint8_t> frame) noexcept;

}  // namespace rdmad::testing
