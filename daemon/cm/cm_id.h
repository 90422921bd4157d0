// An application's rdma_cm_id: the device-side endpoint, the channel its events go to, and the QP
// it drives.
//
// The device's endpoint speaks the protocol and knows nothing of QPs and applications; the engine
// moves QPs and knows nothing of connections. This class is librdmacm's part between the two: it
// moves a bound QP to INIT when it is bound, to RTR and RTS before a connection is accepted or
// established, to ERR when the connection ends, and turns what the endpoint says into event
// records. As in librdmacm, with a QP bound the connecting application sees ESTABLISHED once the
// peer has accepted; without one it sees CONNECT_RESPONSE and calls Establish() itself.
//
// Datagrams (the UDP port space, UD QPs) have no connection: a UD QP goes to RTS when it is bound,
// as in librdmacm, where rdma_create_qp() does it, and is never moved again by its id. It is done
// here, not in the client, for the same reason as with RC: the client need not know how devices
// want QPs to be moved, and its QP is ready when the call returns. Multicast: group_memberships.h.
//
// QP moves are commands to the engine and their answers come later. Until then the id may be
// rejected, disconnected or destroyed: each answer first looks whether it still matters. Destroying
// an id is always allowed, at once.
//
// Status codes and the errno that the client makes of them (rdma_* return -1 and set it):
//   InvalidArgument     EINVAL         a value out of range, too much private data
//   FailedPrecondition  EINVAL         wrong state for this call; says which
//   AlreadyExists       EADDRINUSE     address or port taken
//   NotFound            EADDRNOTAVAIL  no device has the local address
//   Unavailable         ENODEV         the device is gone
//   ResourceExhausted   ENOMEM         a quota, no ephemeral port left
//   Unimplemented       EOPNOTSUPP     port space, option or event that this device does not have
//   Internal            EIO            the QP refused the attributes that the CM computed
//   Cancelled           EINVAL         the id, its QP or its connection went away meanwhile
// Asynchronous outcomes carry a negative errno (ETIMEDOUT, ENETUNREACH, ENODEV) or the wire's
// reject reason in the event.
//
// Thread: control. Owner: the session, by way of CmIdHost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/socket_address.h"
#include "daemon/cm/cm_id_host.h"
#include "daemon/cm/event_channel.h"
#include "daemon/cm/group_memberships.h"
#include "daemon/cm/qp_driver.h"
#include "daemon/device/connection_manager.h"
#include "daemon/engine/engine_proxy.h"
#include "proto/shm/event.h"

namespace rdmad::cm {

// "As many READs and atomics as possible": RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH.
inline constexpr uint8_t kAnyDepth = 0xff;

class CmId : public device::CmEventSink, public EventChannelUser {
 public:
  // Runs on the control thread, once; also with Cancelled if the id is destroyed first.
  using Done = std::function<void(absl::Status)>;

  // `manager`, `host` and `channel` outlive the id. `handle` names it to the client; 0 for an id
  // that is yet to be adopted.
  CmId(device::ConnectionManager* manager, CmIdHost* host, EventChannel* channel, uint64_t handle,
       device::PortSpace port_space);
  // Ends what it does at once: a pending request is rejected, a connection gets a DREQ, a bound QP
  // moves to ERR. No event for the id is written afterwards.
  ~CmId() override;
  CmId(const CmId&) = delete;
  CmId& operator=(const CmId&) = delete;

  absl::Status BindAddr(const SocketAddress& local);
  absl::Status ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                           uint32_t timeout_ms);
  absl::Status ResolveRoute(uint32_t timeout_ms);
  absl::Status Listen(int backlog);

  // rdma_create_qp: from now on this id drives `qp`, which is in RESET and goes to INIT, or as UD
  // to RTS. `engine` is the one that `qp` is active on; both outlive the binding.
  // FailedPrecondition if a QP is bound already.
  void SetQp(device::Qp* qp, device::QpType type, engine::EngineProxy* engine, Done done);
  // rdma_destroy_qp: takes the QP away without moving it. To be called before the QP is
  // deactivated.
  void ClearQp();

  absl::Status Connect(device::ConnParam param);
  void Accept(device::ConnParam param, Done done);
  absl::Status Reject(std::span<const uint8_t> private_data);
  absl::Status Establish();
  // Succeeds also if there is no connection any more. Says whether an event that ends it is still to
  // come.
  void Disconnect(std::function<void(absl::StatusOr<bool>)> done);
  // rdma_notify: `event` as in ibv_event_type. Only COMM_EST is known.
  absl::Status Notify(uint32_t event);
  absl::Status SetOption(uint32_t level, uint32_t option, std::span<const uint8_t> value);
  absl::StatusOr<device::QpAttr> InitQpAttr(device::QpState state) const;
  // Ends in MULTICAST_JOIN, once the QP (if there is one) is attached, or in MULTICAST_ERROR; then
  // the id is not in the group. Who sends only is not attached.
  // AlreadyExists: it is in that group, or on its way.
  absl::Status JoinMulticast(const SocketAddress& group, uint32_t join_flags, uint64_t cookie);
  // No event of this join comes any more. NotFound: not in that group.
  absl::Status LeaveMulticast(const SocketAddress& group);

  struct Migration {
    uint32_t events_reported;  // until now, all of them to older channels
    uint32_t generation;       // of events on the new one
    // Ids whose connect requests were among the events that went along: they are to follow.
    std::vector<uint64_t> requests;
  };
  // Events of this id that were still queued for the old channel go to the new one.
  Migration Migrate(EventChannel* channel);

  // An async event of the bound QP.
  void OnQpAsyncEvent(device::AsyncEventType type);

  [[nodiscard]] uint64_t handle() const noexcept { return handle_; }
  [[nodiscard]] EventChannel* channel() const noexcept { return channel_; }
  // Of a request that is being adopted: kept until the application has answered it, or it is over.
  void HoldWhilePending(std::shared_ptr<const void> place) { pending_place_ = std::move(place); }
  // How many events of this id its channels have taken in all; connect requests count for the
  // listener.
  [[nodiscard]] uint32_t events_reported() const noexcept { return events_reported_; }
  [[nodiscard]] uint32_t generation() const noexcept { return generation_; }
  [[nodiscard]] device::PortSpace port_space() const noexcept { return port_space_; }
  [[nodiscard]] device::Qp* qp() const noexcept { return driver_.qp(); }
  [[nodiscard]] device::Device* device() const noexcept { return endpoint_->device(); }
  [[nodiscard]] SocketAddress local() const noexcept { return endpoint_->local(); }
  [[nodiscard]] SocketAddress peer() const noexcept { return endpoint_->peer(); }
  [[nodiscard]] uint32_t remote_qpn() const noexcept { return endpoint_->remote_qpn(); }
  [[nodiscard]] const char* state_name() const noexcept { return endpoint_->state_name(); }

  void OnCmEvent(device::CmEvent event) override;
  std::shared_ptr<const void> TakeBacklogPlace() override;
  void OnEventWritten() noexcept override { ++events_reported_; }

 private:
  // A request that came in on a listener: not in any channel's books before it is adopted.
  CmId(device::ConnectionManager* manager, CmIdHost* host, EventChannel* channel,
       device::PortSpace port_space, std::unique_ptr<device::CmEndpoint> endpoint);

  // Puts numbers in place of "as many as possible"; InvalidArgument: more than the device can.
  absl::Status LimitDepths(device::ConnParam* param) const;
  // The application has said something to the request, or it is over: the backlog has room again.
  void LeaveBacklog() noexcept {
    backlog_place_.reset();
    pending_place_.reset();
  }
  // There is no connection whose state the QP follows.
  bool is_datagram() const noexcept;
  void NameQp(device::ConnParam* param) const;
  absl::Status AcceptAtEndpoint(const device::ConnParam& param);
  void AcceptDatagram(device::ConnParam param, Done done);
  void OnConnectRequest(device::CmEvent event);
  void OnConnectResponse(device::CmEvent event);
  void OnMovedToRts(const absl::Status& moved, device::CmEvent& event);
  // `subject` is what the event is about: this id, or a new one of this listener.
  void Report(const device::CmEvent& event, const CmId& subject, uint64_t listen_handle);
  void Report(const device::CmEvent& event) { Report(event, *this, 0); }

  device::ConnectionManager* const manager_;
  CmIdHost* const host_;
  EventChannel* channel_;
  uint64_t handle_;
  const device::PortSpace port_space_;
  uint32_t generation_ = 0;
  uint32_t events_reported_ = 0;
  std::unique_ptr<device::CmEndpoint> endpoint_;
  // Accepted or established, and no event has said that it is over.
  bool is_connected_ = false;
  QpDriver driver_;
  device::QpType qp_type_ = device::QpType::kRc;
  device::QpType peer_qp_type_ = device::QpType::kRc;  // of a request
  // A listener's: its requests that wait for an answer share it.
  const std::shared_ptr<const char> backlog_ = std::make_shared<const char>();
  long max_backlog_ = device::kMaxBacklog;
  // A request's.
  std::shared_ptr<const void> backlog_place_;
  std::shared_ptr<const void> pending_place_;
  uint8_t offered_initiator_depth_ = kAnyDepth;
  GroupMemberships groups_;
};

}  // namespace rdmad::cm
