// Events: fixed records that the daemon writes into notification pipes and the client reads from them.
//
// Every event channel (CM events), completion channel and async channel is a pipe. The daemon keeps the write end, the
// client gets the read end: a real descriptor that works with poll, epoll, dup and O_NONBLOCK, whose flags the two
// sides do not share, and that hangs up by itself when the daemon dies. A record is at most PIPE_BUF bytes, so each
// read of sizeof(record) bytes returns one whole record. The daemon never blocks on a full pipe.
#pragma once

#include "proto/shm/segment.h"

namespace rdmad::shm {

// On a completion channel: the CQ `cq_handle` got an entry after it was armed.
struct CompletionEvent {
  uint64_t cq_handle;
};
static_assert(sizeof(CompletionEvent) == 8);

// On the session's async channel.
struct AsyncEvent {
  uint32_t type;  // numbered as ibv_event_type
  uint32_t reserved;
  uint64_t handle;  // QP, CQ or SRQ; or the device index for port, GID and device events
};
static_assert(sizeof(AsyncEvent) == 16);

inline constexpr uint32_t kMaxCmPrivateData = 256;

// An address as in sockaddr_in/sockaddr_in6, but with a layout of our own.
struct SocketAddress {
  uint16_t family;  // 0: none, 4 or 6
  uint16_t port;    // host order
  uint32_t scope_id;
  uint8_t addr[16];  // network order; IPv4 in the first four bytes
};
static_assert(sizeof(SocketAddress) == 24);

// On an event channel. Numbers follow rdma_cma.h: `type` is rdma_cm_event_type.
struct CmEvent {
  uint32_t type;
  int32_t status;          // 0, a negative errno, or the wire's reject reason
  uint64_t id_handle;      // the id that the event is about; with CONNECT_REQUEST the new id
  uint64_t listen_handle;  // with CONNECT_REQUEST: the listening id
  uint32_t generation;     // of the id's channel: events of before a migration carry the old number
  uint32_t device_index;   // of the id's device, kNoDevice if it has none yet
  SocketAddress local;
  SocketAddress peer;
  // Connection parameters (conn) or datagram parameters (ud).
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t srq;
  uint8_t path_mtu;  // ibv_mtu
  uint8_t private_data_bytes;
  uint32_t qpn;
  uint32_t qkey;
  // With ESTABLISHED and CONNECT_REQUEST of the UDP port space, and with MULTICAST_JOIN: how the QP `qpn` is reached
  // (rdma_ud_param::ah_attr).
  uint8_t ah_dest_gid[16];
  uint32_t ah_sgid_index;
  uint32_t ah_flow_label;
  uint8_t ah_traffic_class;
  uint8_t ah_hop_limit;
  uint8_t qp_type;  // with CONNECT_REQUEST of a connection: ibv_qp_type of the peer's QP, 2 RC or 3 UC; else 0
  uint8_t ah_no_grh;
  uint16_t ah_dlid;  // InfiniBand, as the next two
  uint8_t ah_service_level;
  uint8_t ah_src_path_bits;
  uint64_t multicast_cookie;  // with MULTICAST_JOIN and MULTICAST_ERROR: as given to JoinMulticast
  uint8_t private_data[kMaxCmPrivateData];
};
static_assert(sizeof(CmEvent) == 8 + 16 + 8 + 48 + 8 + 8 + 40 + 256);
static_assert(sizeof(CmEvent) <= 4096, "one pipe write must be atomic");

inline constexpr uint32_t kNoDevice = 0xffffffff;

}  // namespace rdmad::shm
