// What a UDP port counts: packets, bytes, syscalls, and every reason for which something was
// dropped or not sent.
//
// Each counter has exactly one writing thread, so an addition is a relaxed load and store and not a
// locked instruction; any thread may read. The engine thread writes all but the `mad_tx_*` ones,
// which are control's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class UdpCounter {
 public:
  // The one writer. Relaxed: a number for people; nothing is published through it.
  void Add(uint64_t count = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t Get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Bytes are UDP payload (BTH to ICRC). A *message* is what one entry of sendmmsg or recvmmsg
// carried: one packet, or a batch of UDP_SEGMENT or UDP_GRO.
struct alignas(64) UdpCounters {
  static constexpr size_t kParseReasons = static_cast<size_t>(wire::DropReason::kBadPayload) + 1;

  UdpCounter rx_packets;
  UdpCounter rx_bytes;
  UdpCounter rx_messages;
  UdpCounter rx_syscalls;
  UdpCounter rx_ecn_ce;  // messages that a router marked "congestion experienced"
  UdpCounter rx_drop_icrc;
  UdpCounter rx_drop_truncated;
  UdpCounter rx_drop_bad_source;
  UdpCounter rx_drop_forged;  // from an address of ours, but not from our port
  UdpCounter rx_errors;  // recvmmsg failed for another reason than "nothing there"
  std::array<UdpCounter, kParseReasons> rx_drop_parse;  // by wire::DropReason; index 0 unused

  UdpCounter tx_packets;
  UdpCounter tx_bytes;
  UdpCounter tx_messages;
  UdpCounter tx_syscalls;
  UdpCounter tx_path_full;      // the socket's buffer was full: the transport tries again
  UdpCounter tx_gso_fallbacks;  // UDP_SEGMENT was refused: single sends from then on
  // Packets lost on the way to the network, by errno. The transport sees them as lost packets.
  UdpCounter tx_lost_too_big;     // EMSGSIZE: the route's MTU is smaller than the QP's path MTU
  UdpCounter tx_lost_no_route;    // EHOSTUNREACH, ENETUNREACH, ENETDOWN, EADDRNOTAVAIL
  UdpCounter tx_lost_denied;      // EPERM, EACCES: a firewall
  UdpCounter tx_lost_no_buffers;  // ENOBUFS, ENOMEM
  UdpCounter tx_lost_other;

  alignas(64) UdpCounter mad_tx_packets;
  UdpCounter mad_tx_failed;
};

// Adds `counters` of one port to the sums in `*out`, which is empty or came from an earlier call.
// Any thread.
void AppendUdpCounters(const UdpCounters& counters, std::vector<device::CounterValue>* out);

}  // namespace rdmad::soft
