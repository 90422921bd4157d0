// What a device offers for making connections: the device-side half of an rdma_cm id.
//
// The app-facing half (event channels, migration, handles, ports to apps) is daemon/cm. This half resolves, listens,
// exchanges CM messages and says what happened. It never touches a QP: the caller moves the QP with the attributes from
// InitQpAttr(), as librdmacm does, and then calls on. The order for a connecting side is
//   ResolveAddr -> kAddrResolved -> ResolveRoute -> kRouteResolved -> Connect -> kConnectResponse -> (QP to RTR, RTS)
//   -> Establish (sends RTU) -> the caller tells its app ESTABLISHED;
// for an accepting side
//   Listen -> kConnectRequest with a new endpoint -> (QP to RTR, RTS) -> Accept (sends REP) -> kEstablished on RTU.
//
// Thread: control, all of it. Events are delivered from Poll() only, never from inside another call. No event loop is
// needed: the owner calls Poll() when poll_fd() is readable or NextDeadline() has come.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/socket_address.h"
#include "daemon/device/device.h"

namespace rdmad::device {

enum class PortSpace : uint16_t { kTcp = 0x0106, kUdp = 0x0111, kIb = 0x013f };  // rdma_port_space

// RDMA_UDP_QKEY: of every datagram QP and group of the UDP port space whose owner names no other.
inline constexpr uint32_t kUdpQkey = 0x01234567;

enum class CmEventType : uint32_t {  // rdma_cm_event_type
  kAddrResolved = 0,
  kAddrError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kMulticastJoin = 12,
  kMulticastError = 13,
  kAddrChange = 14,
  kTimewaitExit = 15,
};

// rdma_conn_param.
struct ConnParam {
  std::vector<uint8_t> private_data;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t flow_control = 0;
  uint8_t retry_count = 0;      // 0..7
  uint8_t rnr_retry_count = 0;  // 0..7, 7 = for ever
  bool srq = false;
  uint32_t qpn = 0;             // the local QP
  uint32_t qkey = 0;            // UD
  uint8_t min_rnr_timer = 0;    // of the local QP, not on the wire; 0: as InitQpAttr() says
  // RC or UC. Of the QP to be connected, which with kConnectRequest is the peer's. To accept, it may be left out.
  std::optional<QpType> qp_type = std::nullopt;
};

inline constexpr int kMaxBacklog = 1024;

class CmEndpoint;

struct CmEvent {
  CmEventType type;
  int status = 0;  // negative errno, or with kRejected the wire's reason
  ConnParam param;  // of the peer, where the message carries them; qpn is the peer's
  Mtu path_mtu = Mtu::k1024;
  // Of the UDP port space, with kConnectRequest and kEstablished, and with kMulticastJoin: how the QP param.qpn is reached.
  AddressVector av;
  uint64_t multicast_cookie = 0;  // kMulticastJoin, kMulticastError
  std::unique_ptr<CmEndpoint> new_endpoint;  // kConnectRequest; its sink is set by the receiver
  // kConnectRequest of a device that has asked for it: a place in the listener's backlog.
  std::shared_ptr<const void> backlog_place;
};

class CmEventSink {
 public:
  virtual ~CmEventSink() = default;
  // Takes the event. May call the endpoint's methods, and may destroy the endpoint.
  virtual void OnCmEvent(CmEvent event) = 0;
  // Of a listener, whose backlog is the sink's: a place for one more request, which is free again when nobody holds it
  // any more. Null: there is none. A device that can drop a request asks before it makes one of it, and drops it, so
  // that the peer asks again; the others just report it.
  virtual std::shared_ptr<const void> TakeBacklogPlace() {
    return {std::shared_ptr<const void>(), this};  // without a bound: nothing to be counted
  }
};

// Errors of all calls: FailedPrecondition (wrong state; says which), InvalidArgument. Others are named.
// Destroying an endpoint ends what it does at once: a pending request is withdrawn with REJ, a connection gets a DREQ.
class CmEndpoint {
 public:
  virtual ~CmEndpoint() = default;

  virtual void SetSink(CmEventSink* sink) noexcept = 0;
  // Takes a port of the port space (0: any ephemeral). AlreadyExists: address in use. NotFound: no device has the address.
  // Binding the wildcard covers every device, also later ones.
  virtual absl::Status BindAddr(const SocketAddress& local) = 0;
  // `local` may be unset: the kernel's route decides. Ends in kAddrResolved or kAddrError.
  virtual absl::Status ResolveAddr(const SocketAddress& local, const SocketAddress& peer, uint32_t timeout_ms) = 0;
  virtual absl::Status ResolveRoute(uint32_t timeout_ms) = 0;
  // How many requests wait for an answer is the sink's to count; `backlog` is for a kernel that counts, too, what it has
  // not reported yet. At most kMaxBacklog, which is also what 0 means.
  virtual absl::Status Listen(int backlog) = 0;
  virtual absl::Status Connect(const ConnParam& param) = 0;
  virtual absl::Status Establish() = 0;
  virtual absl::Status Accept(const ConnParam& param) = 0;
  virtual absl::Status Reject(std::span<const uint8_t> private_data) = 0;
  virtual absl::Status Disconnect() = 0;
  // The QP saw data before the RTU came (IBV_EVENT_COMM_EST).
  virtual absl::Status NotifyCommEstablished() = 0;
  virtual absl::Status SetOption(uint32_t option, std::span<const uint8_t> value) = 0;
  // Of an endpoint that is bound to a device. Ends in kMulticastJoin, with param.qpn 0xffffff and the group's QKey, or
  // kMulticastError. Attaching a QP is the caller's. `cookie` comes back. AlreadyExists: the endpoint is in that group.
  virtual absl::Status JoinMulticast(const SocketAddress& group, uint32_t join_flags, uint64_t cookie) = 0;
  virtual absl::Status LeaveMulticast(const SocketAddress& group) = 0;  // NotFound: not in it
  // Attributes (with mask) that move this connection's QP into `state`; FailedPrecondition before they are known.
  virtual absl::StatusOr<QpAttr> InitQpAttr(QpState state) const = 0;

  virtual Device* device() const noexcept = 0;  // null until bound to one
  virtual SocketAddress local() const noexcept = 0;
  virtual SocketAddress peer() const noexcept = 0;
  virtual const char* state_name() const noexcept = 0;
  virtual uint32_t remote_qpn() const noexcept = 0;
};

class ConnectionManager {
 public:
  virtual ~ConnectionManager() = default;
  virtual std::unique_ptr<CmEndpoint> CreateEndpoint(PortSpace port_space, CmEventSink* sink) = 0;
  // Whether one of its devices has this address now.
  virtual bool Serves(const IpAddress& address) const = 0;

  virtual int poll_fd() const noexcept = 0;  // readable (level) when Poll() has work
  virtual void Poll(TimeNs now) = 0;         // bounded work: messages, timers, queued events
  // Of the timers alone; every call may move it, those of endpoints too, so ask again after each.
  virtual TimeNs NextDeadline() const noexcept = 0;
};

}  // namespace rdmad::device
