// What one soft device can do at most. The transport keeps these limits and the device advertises
// them.
#pragma once

#include <cstdint>

#include "daemon/device/types.h"
#include "proto/shm/work_queue.h"

namespace rdmad::soft {

inline constexpr uint32_t kMaxMessageBytes = 1u << 30;
inline constexpr uint32_t kMaxQueueDepth = shm::kMaxQueueDepth;  // WRs per send or receive queue
inline constexpr uint32_t kMaxSge = shm::kMaxSge;
inline constexpr uint32_t kMaxInlineBytes = shm::kMaxInlineBytes;
inline constexpr uint32_t kMaxRdAtomic =
    16;  // READs and atomics in flight per QP, as requester and as responder
inline constexpr device::Mtu kMaxMtu = device::Mtu::k4096;
// How late this host may send an ACK, 4.096 us * 2^this: 17 ms. A REP announces it.
inline constexpr uint8_t kLocalAckDelay = 12;

// How hard one transport drives its QPs. The defaults suit tens of Gbit/s and tens of microseconds.
struct TransportConfig {
  // Bytes in flight to one peer QP. The window starts at the first value, grows and shrinks with
  // what the network loses, and never leaves [a few packets, the second value].
  uint32_t initial_window_bytes = 256 * 1024;
  uint32_t max_window_bytes = 2 * 1024 * 1024;
  // What one QP may send or copy before the next one has its turn, and all of them in one DoWork().
  uint32_t qp_budget_bytes = 64 * 1024;
  uint32_t turn_budget_bytes = 256 * 1024;
  // Congestion by marks instead of losses: RC packets say that routers may mark them, marks are
  // answered with CNPs, and CNPs slow a QP down. Off: none of it.
  bool ecn = true;
  // QPs look for a peer on the same transport and copy instead of sending. Off only in tests.
  bool local_path = true;
};

}  // namespace rdmad::soft
