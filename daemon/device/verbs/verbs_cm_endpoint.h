// An rdma_cm_id of the kernel behind the interface of every device's endpoint. Its states, by what
// was called and reported:
//
//   kIdle -> BindAddr -> kBound -> Listen -> kListening
//     \________________/  |
//                         v ResolveAddr
//                     kAddrQuery -> kAddrResolved -> ResolveRoute -> kRouteQuery -> kRouteResolved
//
//   connecting  kRouteResolved -> Connect -> kReqSent -> (REP) kRepRcvd -> Establish
//               -> kEstablished
//   accepting   (a listener's request) kReqRcvd -> Accept -> kRepSent -> (RTU) kEstablished
//   ending      kEstablished -> Disconnect -> kDreqSent -> kTimewait -> kClosed
//
//   kRejected, kClosed: there is no connection
//   kRemoved: the device has gone; the id is released, every call is answered Unavailable, and
//   after kDeviceRemoval no event comes
//
// The kernel has its own view and may be ahead of what it has reported; where it refuses what fits
// our state, that is FailedPrecondition too. Our state is checked first because librdmacm follows
// null pointers in states that do not fit. Port space UDP (SIDR): Connect ends in kEstablished with
// the peer's qpn and qkey, Accept too, without an event.
//
// Before the host's first RDMA device the kernel makes no id. An endpoint of that time takes
// options, and may bind a wildcard and listen, which begins when the device is there; all else is
// Unavailable.
//
// As the soft device does, a DREQ of the peer is answered at once, not only when the application
// gets to it.
//
// Not to be avoided in librdmacm: ResolveRoute asks ibacm where that runs, and waits for its
// answer.
//
// Thread: control. Owner: the caller of CreateEndpoint(), or the receiver of kConnectRequest.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/verbs/verbs_cm_convert.h"
#include "daemon/device/verbs/verbs_connection_manager.h"

namespace rdmad::verbs {

class VerbsCmEndpoint : public device::CmEndpoint {
 public:
  VerbsCmEndpoint(VerbsConnectionManager* manager, device::PortSpace space,
                  device::CmEventSink* sink);
  // Of a request that came in: takes `id` over.
  VerbsCmEndpoint(VerbsConnectionManager* manager, rdma_cm_id* id, uint32_t remote_qpn);
  ~VerbsCmEndpoint() override;
  VerbsCmEndpoint(const VerbsCmEndpoint&) = delete;
  VerbsCmEndpoint& operator=(const VerbsCmEndpoint&) = delete;

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
  // Options as in rdma_set_option(3), level RDMA_OPTION_ID. Unimplemented: another option.
  absl::Status SetOption(uint32_t option, std::span<const uint8_t> value) override;
  // FailedPrecondition: the port space is not UDP, or the id is not bound to a device.
  absl::Status JoinMulticast(const SocketAddress& group, uint32_t join_flags,
                             uint64_t cookie) override;
  absl::Status LeaveMulticast(const SocketAddress& group) override;
  absl::StatusOr<device::QpAttr> InitQpAttr(device::QpState state) const override;

  device::Device* device() const noexcept override;
  SocketAddress local() const noexcept override;
  SocketAddress peer() const noexcept override;
  const char* state_name() const noexcept override;
  uint32_t remote_qpn() const noexcept override { return remote_qpn_; }

  // ---- for the manager ----
  // Of an id from before: the kernel makes it now, and it does what it was told.
  void OnChannelOpened();
  // Last stop of an event before the sink, which may destroy the endpoint.
  void Deliver(device::CmEvent event);
  // The device has gone: lets go of the id, for which the kernel may be waiting.
  void ReleaseRemoved();
  // librdmacm's context of the device that the id is bound to, or null.
  [[nodiscard]] ibv_context* context() const noexcept {
    return id_ == nullptr ? nullptr : id_->verbs;
  }
  // In the manager's books of ports from before the kernel's ids.
  [[nodiscard]] device::PortTable::OwnerId DeferredOwner() const noexcept {
    return reinterpret_cast<uintptr_t>(this);
  }
  // As agreed so far; 1024 when nothing is.
  [[nodiscard]] device::Mtu path_mtu() const;

 private:
  enum class State : uint8_t {
    kIdle,
    kBound,
    kAddrQuery,
    kAddrResolved,
    kRouteQuery,
    kRouteResolved,
    kListening,
    kReqSent,
    kRepRcvd,
    kReqRcvd,
    kRepSent,
    kEstablished,
    kDreqSent,
    kTimewait,
    kRejected,
    kClosed,
    kRemoved,
  };

  struct Option {
    uint32_t name;
    std::vector<uint8_t> value;
  };
  // What was asked for while the kernel could make no id.
  struct Deferred {
    std::vector<Option> options;
    int backlog = 0;
  };
  struct Group {
    SocketAddress address;
    uint64_t cookie;
    bool asked;       // the answer has not been delivered
    bool by_kernel;   // it has joined, or is about to
    UniqueFd member;  // without the kernel's help; empty if only to send
  };

  static const char* Name(State state) noexcept;
  // OK if the id is there and in `state`.
  absl::Status Require(const char* call, State state) const;
  absl::Status WrongState(const char* call) const;
  // The status of a failed librdmacm call, by errno.
  absl::Status Failed(const char* call, Einval einval) const;
  absl::Status CheckPrivateData(const char* call, size_t bytes, size_t limit) const;
  std::string Describe(const char* call) const;
  absl::Status MakeId();
  absl::Status Bind(const SocketAddress& local);
  absl::Status DeferBind(const SocketAddress& local);
  absl::Status DeferListen(int backlog);
  void DeferOption(uint32_t option, std::span<const uint8_t> value);
  // The last word on a flag of before the kernel's id.
  bool IsDeferredOn(uint32_t option) const;
  absl::Status SetKernelOption(uint32_t option, std::span<const uint8_t> value);
  // The QP attributes of a datagram QP that the kernel does not know of.
  absl::StatusOr<device::QpAttr> DatagramQpAttr(device::QpState state) const;
  absl::StatusOr<device::QpAttr> KernelQpAttr(device::QpState state) const;
  // The state that the event leads to; false: the event is not for the sink.
  bool OnReported(device::CmEvent* event);
  void OnAddrResolved(device::CmEvent* event);
  // What the kernel does for IPv4, for a group of IPv6.
  absl::Status JoinWithoutKernel(const SocketAddress& group, bool send_only, uint64_t cookie);
  absl::Status LeaveInKernel(const Group& group);
  bool OnMulticast(device::CmEvent* event);
  bool is_datagram() const noexcept { return space_ == device::PortSpace::kUdp; }

  VerbsConnectionManager* const manager_;
  const device::PortSpace space_;
  device::CmEventSink* sink_ = nullptr;
  rdma_cm_id* id_ = nullptr;  // null: `unusable_` says why
  absl::Status unusable_;
  std::optional<Deferred> deferred_;
  State state_ = State::kIdle;
  uint32_t remote_qpn_ = 0;
  std::vector<Group> groups_;
  // What the id knew last, for when it is released.
  SocketAddress local_;
  SocketAddress peer_;
};

}  // namespace rdmad::verbs
