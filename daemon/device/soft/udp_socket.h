// The UDP socket of one local address, set up so that RoCEv2 goes through it.
//
// - It is bound to the address and never connected, with path-MTU discovery forced on: only then
// does the kernel send
//   single IPv4 packets with identification 0 and number those of a UDP_SEGMENT batch 0, 1, 2, ...,
//   which the ICRC must know (wire/icrc_id.h).
// - UDP_GRO lets batches arrive whole. On IPv6 a zero checksum is accepted, since other RoCE
// implementations send it.
// - Multicasts go out by the interface that has the address.
// - Buffers are as large as the kernel allows.
//
// Source: udp(7), ip(7), ipv6(7); measured on kernels 6.1 to 6.18.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::soft {

inline constexpr int kDefaultHopLimit = 64;
// IPV6_FLOWINFO of linux/in6.h, which cannot be included beside netinet/in.h.
inline constexpr int kIpv6FlowInfo = 11;

struct UdpSocketOptions {
  uint32_t receive_buffer_bytes = 16u << 20;
  uint32_t send_buffer_bytes = 4u << 20;
  // Where several sockets share an address, a packet goes to its engine's. Off only in tests: the
  // kernel then takes whichever it likes.
  bool steer = true;
};

// Opens and binds. Thread: any.
// Errors: AlreadyExists (something else has the port on that address), NotFound (no interface has
// the address),
//         PermissionDenied, Unavailable (the kernel lacks what we need, or is out of descriptors).
//         All name address and port.
absl::StatusOr<UniqueFd> OpenUdpSocket(const IpAddress& local, uint16_t port,
                                       const UdpSocketOptions& options);

// The two steps of it. `where` is for messages. Errors: Unavailable; those of OpenUdpSocket().
absl::StatusOr<UniqueFd> MakeUdpSocket(bool is_v4, const std::string& where,
                                       const UdpSocketOptions& options);
absl::Status BindUdpSocket(int fd, const IpAddress& local, uint16_t port);

// Datagrams that the kernel dropped because this socket's receive buffer was full (or their
// checksum was wrong). 0 if it does not say. Thread: any.
uint64_t SocketDrops(int fd) noexcept;

}  // namespace rdmad::soft
