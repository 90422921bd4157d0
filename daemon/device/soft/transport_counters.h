// What a transport counts: one table of name, unit and help text, one relaxed atomic each.
//
// Thread: the engine writes, any thread reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "daemon/device/device.h"

namespace rdmad::soft {

// X(name, unit, help)
#define RDMAD_TRANSPORT_COUNTERS(X)                                                                \
  X(tx_packets, "packets", "packets handed to the network")                                        \
  X(tx_payload_bytes, "bytes", "payload bytes handed to the network, retransmissions included")    \
  X(tx_blocked, "events", "times the network took fewer packets than offered")                     \
  X(rx_packets, "packets", "packets that reached the transport")                                   \
  X(rx_payload_bytes, "bytes", "payload bytes that reached the transport")                         \
  X(rx_multicast_packets, "packets", "packets to multicast groups that queue pairs are in")        \
  X(rx_handed_on, "packets", "packets that came in at another engine than their queue pair's")     \
  X(tx_acks, "packets", "acknowledgements sent")                                                   \
  X(rx_acks, "packets", "acknowledgements received")                                               \
  X(tx_nak_sequence, "packets", "NAKs sent because a packet was missing")                          \
  X(rx_nak_sequence, "packets", "NAKs received because a packet was missing")                      \
  X(tx_nak_invalid_request, "packets", "NAKs sent for requests that make no sense")                \
  X(tx_nak_remote_access, "packets",                                                               \
    "NAKs sent for remote keys, ranges or rights that do not hold")                                \
  X(tx_nak_remote_operation, "packets", "NAKs sent because a receive could not be completed here") \
  X(rx_nak_fatal, "packets", "NAKs received that ended a queue pair")                              \
  X(tx_rnr_nak, "packets", "receiver-not-ready NAKs sent")                                         \
  X(rx_rnr_nak, "packets", "receiver-not-ready NAKs received")                                     \
  X(local_rnr_waits, "events", "receiver-not-ready waits on the local path")                       \
  X(duplicate_requests, "packets", "requests that had been executed before")                       \
  X(duplicate_responses, "packets", "acknowledgements and responses that said nothing new")        \
  X(retransmit_rounds, "events",                                                                   \
    "times a requester went back to its oldest unacknowledged packet")                             \
  X(retransmitted_packets, "packets", "packets sent, or READ responses asked for, again")          \
  X(timeouts, "events", "acknowledgement timeouts")                                                \
  X(tail_probes, "events", "early retransmissions of one packet, before the timeout")              \
  X(ecn_marked, "packets", "packets that arrived marked 'congestion experienced'")                 \
  X(cnp_sent, "packets", "congestion notifications (CNP) sent because of such marks")              \
  X(cnp_handled, "packets", "congestion notifications that slowed a queue pair down")              \
  X(cnp_ignored, "packets",                                                                        \
    "congestion notifications that did not: of a round trip that has slowed it down already, or "  \
    "it has nothing under way, or ECN is off")                                                     \
  X(retry_exhausted, "events", "queue pairs that gave up after timeouts")                          \
  X(rnr_retry_exhausted, "events", "queue pairs that gave up after receiver-not-ready NAKs")       \
  X(local_messages, "messages", "messages copied between two queue pairs of this daemon")          \
  X(local_bytes, "bytes", "bytes copied between two queue pairs of this daemon")                   \
  X(completions, "completions", "work completions reported")                                       \
  X(completion_errors, "completions",                                                              \
    "work completions reported with an error, flushes not counted")                                \
  X(qp_errors, "events", "queue pairs that the transport moved to the error state")                \
  X(drop_hand_on_full, "packets",                                                                  \
    "dropped: came in at another engine, and the queue pair's did not keep up")                    \
  X(drop_unknown_qp, "packets", "dropped: no such queue pair")                                     \
  X(drop_wrong_address, "packets",                                                                 \
    "dropped: not from the peer of the queue pair, or not to its address")                         \
  X(drop_wrong_transport, "packets", "dropped: opcode of another transport than the queue pair's") \
  X(drop_bad_pkey, "packets", "dropped: partition key does not match")                             \
  X(drop_bad_state, "packets", "dropped: the queue pair was in no state to take it")               \
  X(drop_bad_qkey, "packets", "dropped: datagram with another QKey than the queue pair's")         \
  X(drop_no_receive, "packets", "dropped: no receive was posted, and the sender cannot be told")   \
  X(drop_receive_too_short, "packets",                                                             \
    "dropped: datagram that is longer, with its 40 bytes of GRH, than the posted receive")         \
  X(drop_out_of_sequence, "packets", "dropped: behind a missing packet")                           \
  X(drop_incomplete, "messages", "UC messages dropped: packets were missing")                      \
  X(drop_refused, "messages",                                                                      \
    "UC messages dropped: no receive, or key, right or length does not hold")                      \
  X(drop_bad_response, "packets", "dropped: response that answers nothing")

struct TransportCounters {
#define RDMAD_FIELD(name, unit, help) std::atomic<uint64_t> name{0};
  RDMAD_TRANSPORT_COUNTERS(RDMAD_FIELD)
#undef RDMAD_FIELD

  // Name, unit, help and present value of each, in the order of the table.
  std::vector<device::CounterValue> Snapshot() const {
    return {
#define RDMAD_VALUE(name, unit, help) {#name, unit, help, name.load(std::memory_order_relaxed)},
        RDMAD_TRANSPORT_COUNTERS(RDMAD_VALUE)
#undef RDMAD_VALUE
    };
  }
};

// Single writer: a load and a store, not a locked instruction.
inline void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace rdmad::soft
