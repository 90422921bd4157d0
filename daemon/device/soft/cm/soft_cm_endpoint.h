// The soft device's side of an rdma_cm id: addresses, ports, route and options, up to the point
// where a CmConnection takes over. Life before a connection:
//
//   kIdle -> BindAddr -> kBound -> Listen -> kListening
//     \________________/  |
//                         v ResolveAddr
//                     kAddrQuery -> kAddrResolved -> ResolveRoute -> kRouteQuery -> kRouteResolved
//                                                                                      | Connect
//   (an endpoint that a listener made begins here) ------------------------------> kConnected
//                                             port space UDP: SIDR_REP got or sent     |
//                                                                  kEstablished  <-----+
//
// kAddrQuery falls back to kBound on an error; losing the device ends in kConnected without a
// connection. An endpoint has one connection in its life; of the UDP port space it is only a
// question and an answer, which leave nothing behind but the two sides' knowledge of each other.
//
// Thread: control. Owner: the caller of CreateEndpoint(), or the receiver of kConnectRequest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/cm_connection.h"
#include "daemon/device/soft/cm/sidr_exchange.h"
#include "daemon/device/soft/cm/soft_connection_manager.h"
#include "daemon/device/soft/cm/source_address.h"

namespace rdmad::soft {

class SoftCmEndpoint : public device::CmEndpoint {
 public:
  SoftCmEndpoint(SoftConnectionManager* manager, device::PortSpace space,
                 device::CmEventSink* sink);
  ~SoftCmEndpoint() override;

  void SetSink(device::CmEventSink* sink) noexcept override { sink_ = sink; }
  absl::Status BindAddr(const SocketAddress& local) override;
  absl::Status ResolveAddr(const SocketAddress& local, const SocketAddress& peer,
                           uint32_t timeout_ms) override;
  absl::Status ResolveRoute(uint32_t timeout_ms) override;
  absl::Status Listen(int backlog) override;
  absl::Status Connect(const device::ConnParam& param) override;
  absl::Status Establish() override;
  absl::Status Accept(const device::ConnParam& param) override;
  absl::Status Reject(std::span<const uint8_t> private_data) override;
  absl::Status Disconnect() override;
  absl::Status NotifyCommEstablished() override;
  // Options as in rdma_set_option(3), level RDMA_OPTION_ID, with the value sizes of the kernel.
  // The ACK timeout is that of this side's QP, exactly, 0 (wait for ever) included; what the peer is
  // told by the REQ for its own QP has our delay on top. Unimplemented: another option.
  absl::Status SetOption(uint32_t option, std::span<const uint8_t> value) override;
  // A group needs nobody's consent on Ethernet: the join succeeds in the next Poll(). Ids of the
  // UDP port space only. A link-local group without a scope is taken to be on the device's
  // interface; the port of `group` does not count. InvalidArgument also: not a multicast address,
  // another address family than the id's, unknown flags.
  absl::Status JoinMulticast(const SocketAddress& group, uint32_t join_flags,
                             uint64_t cookie) override;
  absl::Status LeaveMulticast(const SocketAddress& group) override;
  absl::StatusOr<device::QpAttr> InitQpAttr(device::QpState state) const override;

  device::Device* device() const noexcept override { return device_; }
  SocketAddress local() const noexcept override { return local_; }
  SocketAddress peer() const noexcept override { return peer_; }
  const char* state_name() const noexcept override;
  uint32_t remote_qpn() const noexcept override { return remote_qpn_; }

  // ---- for the manager ----
  void OnQueryTimer();
  // Makes this the endpoint of a request that came in.
  void Adopt(CmConnection* connection, const SocketAddress& local, const SocketAddress& peer);
  void Adopt(SidrExchange* exchange, const SocketAddress& local, const SocketAddress& peer);
  // Last stop of an event before the sink, which may destroy the endpoint.
  void Deliver(device::CmEvent event);
  void OnConnectionClosed();
  void OnSidrOver() { sidr_ = nullptr; }
  void OnDeviceRemoved();
  void OnAddressChanged();
  [[nodiscard]] SoftConnectionManager::EndpointId id() const noexcept { return id_; }
  [[nodiscard]] device::PortSpace space() const noexcept { return space_; }
  // Of a listener: its owner's. Null: there is none.
  [[nodiscard]] std::shared_ptr<const void> TakeBacklogPlace() const {
    return sink_ != nullptr ? sink_->TakeBacklogPlace() : nullptr;
  }

 private:
  enum class State : uint8_t {
    kIdle,
    kBound,
    kAddrQuery,
    kAddrResolved,
    kRouteQuery,
    kRouteResolved,
    kListening,
    kConnected,
    kEstablished,
  };
  struct Membership {
    IpAddress group;
    uint64_t cookie;
    bool reported;  // the owner has heard that it joined
  };

  [[nodiscard]] bool is_datagram() const noexcept { return space_ == device::PortSpace::kUdp; }
  absl::Status WrongState(const char* call) const;
  absl::Status Bind(const SocketAddress& local);
  // The end of the address query; `error`: a negative errno, or 0.
  void FinishAddrQuery(int error);
  // A negative errno if what the address query found holds no longer, else 0.
  int RouteErrno() const;
  // Makes the query's answer this endpoint's own; may turn `event` into an error.
  void TakeSource(device::CmEvent* event);
  // What it takes to begin a connection; NotFound: the device has lost the address.
  absl::Status CheckConnect(const device::ConnParam& param, size_t private_data_limit) const;
  absl::Status ConnectDatagram(const device::ConnParam& param);
  absl::Status AnswerDatagram(const char* call, const wire::CmSidrRep& rep,
                              std::span<const uint8_t> private_data);
  absl::StatusOr<device::QpAttr> DatagramQpAttr(device::QpState state) const;
  absl::Status SetReuseAddr(bool reuse);
  absl::Status SetV6Only(bool only);
  // The group as the device knows it; the errors of JoinMulticast().
  absl::StatusOr<IpAddress> GroupOf(const SocketAddress& group) const;
  // Null: not in it.
  Membership* FindMembership(const IpAddress& group);
  bool TakeJoined(const device::CmEvent& event);

  SoftConnectionManager* const manager_;
  const device::PortSpace space_;
  const SoftConnectionManager::EndpointId id_;
  device::CmEventSink* sink_;
  State state_ = State::kIdle;
  device::Device* device_ = nullptr;
  SocketAddress local_;
  SocketAddress peer_;
  ChosenSource source_;  // what a running address query is about
  TimeNs query_deadline_ = 0;
  int64_t query_pause_ns_ = 0;
  CmConnection* connection_ = nullptr;
  SidrExchange* sidr_ = nullptr;  // port space UDP, instead of a connection
  uint32_t remote_qpn_ = 0;
  uint32_t qkey_;  // of our QP, port space UDP
  std::vector<Membership> memberships_;
  // Options.
  uint8_t tos_ = 0;
  std::optional<uint8_t> ack_timeout_;
  bool reuse_addr_ = false;
  bool v6_only_ = false;
};

}  // namespace rdmad::soft
