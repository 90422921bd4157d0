#include "client/sdk/connect_operation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/status_macros.h"

namespace rdmad::sdk {

ConnectOperation::ConnectOperation(std::shared_ptr<Session> session, const Address& peer,
                                   const EndpointOptions& options, std::unique_ptr<EventChannel> channel)
    : session_(std::move(session)),
      peer_(peer),
      options_(options),
      deadline_(Deadline::After(options.connect_timeout)),
      channel_(std::move(channel)) {}

absl::StatusOr<std::unique_ptr<ConnectOperation>> ConnectOperation::Start(const std::shared_ptr<Session>& session,
                                                                          const Address& peer,
                                                                          const EndpointOptions& options) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<EventChannelState> state, EventChannelState::Create(session));
  state->pipe().SetInternal();
  std::unique_ptr<ConnectOperation> operation(
      new ConnectOperation(session, peer, options, std::make_unique<EventChannel>(std::move(state))));
  SDK_ASSIGN_OR_RETURN(operation->id_, MakeId(operation->channel_->state(), PortSpace::kTcp));
  SDK_RETURN_IF_ERROR(operation->id_->ResolveAddr(Address(), peer, options.connect_timeout));
  return operation;
}

absl::Status ConnectOperation::TimeoutError() const {
  return absl::DeadlineExceededError(absl::StrCat("connect: peer=", peer_.ToString(), ": no answer within ",
                                                  absl::FormatDuration(options_.connect_timeout), " while ", step_));
}

absl::Status ConnectOperation::OnRouteResolved() {
  step_ = "connecting";
  SDK_ASSIGN_OR_RETURN(endpoint_, EndpointState::Create(session_, std::move(id_), options_));
  return endpoint_->id().Connect(options_.param);
}

absl::StatusOr<bool> ConnectOperation::OnEvent(const CmEvent& event) {
  switch (event.type()) {
    case CmEventType::kAddrResolved:
      step_ = "resolving the route";
      SDK_RETURN_IF_ERROR(id_->ResolveRoute(std::max(deadline_.Left(), absl::Milliseconds(1))));
      return false;
    case CmEventType::kRouteResolved:
      SDK_RETURN_IF_ERROR(OnRouteResolved());
      return false;
    case CmEventType::kEstablished:
      SDK_RETURN_IF_ERROR(endpoint_->OnEstablished(event));
      return true;
    case CmEventType::kAddrError:
    case CmEventType::kRouteError:
    case CmEventType::kConnectError:
    case CmEventType::kUnreachable:
    case CmEventType::kRejected:
    case CmEventType::kDisconnected:
    case CmEventType::kDeviceRemoval:
      return session_->alive() ? event.ToStatus() : session_->DeadError();
    case CmEventType::kConnectRequest:
    case CmEventType::kConnectResponse:
    case CmEventType::kMulticastJoin:
    case CmEventType::kMulticastError:
    case CmEventType::kAddrChange:
    case CmEventType::kTimewaitExit:
      break;
  }
  return false;
}

absl::StatusOr<std::shared_ptr<EndpointState>> ConnectOperation::Try() {
  while (true) {
    absl::StatusOr<std::unique_ptr<EventRecord>> record = channel_->state()->GetEvent(Deadline::Immediate());
    if (absl::IsDeadlineExceeded(record.status())) {
      if (deadline_.Passed()) return TimeoutError();
      return std::shared_ptr<EndpointState>();
    }
    if (!record.ok()) return record.status();
    CmEvent event(std::move(record).value());
    event.AckEarly();  // what follows may destroy the id
    SDK_ASSIGN_OR_RETURN(const bool established, OnEvent(event));
    if (established) return std::move(endpoint_);
  }
}

absl::StatusOr<std::shared_ptr<EndpointState>> ConnectOperation::Wait() {
  while (true) {
    SDK_ASSIGN_OR_RETURN(std::shared_ptr<EndpointState> endpoint, Try());
    if (endpoint != nullptr) return endpoint;
    if (channel_->state()->pipe().WaitFor(deadline_) == PipeResult::kTimeout) return TimeoutError();
  }
}

}  // namespace rdmad::sdk
