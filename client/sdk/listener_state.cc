#include "client/sdk/listener_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/status_macros.h"

namespace rdmad::sdk {

ListenerState::ListenerState(std::shared_ptr<ClientState> client, const Address& address,
                             const EndpointOptions& options, int backlog)
    : client_(std::move(client)), address_(address), options_(options), backlog_(backlog) {}

ListenerState::~ListenerState() { Stop(); }

absl::StatusOr<std::unique_ptr<ListenerState>> ListenerState::Listen(std::shared_ptr<ClientState> client,
                                                                     const Address& address,
                                                                     const EndpointOptions& options, int backlog) {
  std::unique_ptr<ListenerState> state(new ListenerState(std::move(client), address, options, backlog));
  SDK_RETURN_IF_ERROR(state->Start());
  return state;
}

absl::Status ListenerState::Restart() {
  Stop();
  const absl::Status status = Start();
  // A daemon that is there and does not answer; to the caller a deadline is that of its Accept.
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::UnavailableError(absl::StrCat("accept: local=", address_.ToString(), ": ", std::string(status.message())));
}

absl::Status ListenerState::Start() {
  SDK_ASSIGN_OR_RETURN(session_, client_->Live());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<EventChannelState> state, EventChannelState::Create(session_));
  state->pipe().SetInternal();
  channel_ = std::make_unique<EventChannel>(std::move(state));
  SDK_ASSIGN_OR_RETURN(id_, MakeId(channel_->state(), PortSpace::kTcp));
  SDK_RETURN_IF_ERROR(id_->BindAddr(address_));
  SDK_RETURN_IF_ERROR(id_->Listen(backlog_));
  if (const uint16_t port = id_->src_port(); port != 0) address_.port = port;
  return absl::OkStatus();
}

void ListenerState::Stop() noexcept {
  accepting_.clear();
  id_ = nullptr;
}

void ListenerState::OnConnectRequest(CmEvent& event) {
  std::unique_ptr<CmId> id = event.TakeId();
  const CmId* key = id.get();
  // The peer has said how many reads it would take and make.
  ConnParam param = options_.param;
  param.responder_resources = std::min(param.responder_resources, event.param().responder_resources);
  param.initiator_depth = std::min(param.initiator_depth, event.param().initiator_depth);
  absl::StatusOr<std::shared_ptr<EndpointState>> endpoint = EndpointState::Create(session_, std::move(id), options_);
  // Whatever fails here fails this peer only: the id goes, and with it goes a rejection to the peer.
  if (!endpoint.ok() || !(*endpoint)->Accept(event, param).ok()) return;
  accepting_.emplace(key, std::move(endpoint).value());
}

std::shared_ptr<EndpointState> ListenerState::OnEvent(CmEvent& event) {
  if (event.type() == CmEventType::kConnectRequest) {
    OnConnectRequest(event);
    return nullptr;
  }
  const auto found = accepting_.find(event.id());
  if (found == accepting_.end()) return nullptr;
  std::shared_ptr<EndpointState> endpoint = std::move(found->second);
  accepting_.erase(found);
  if (event.type() != CmEventType::kEstablished || !endpoint->OnEstablished(event).ok()) return nullptr;
  return endpoint;
}

absl::StatusOr<std::shared_ptr<EndpointState>> ListenerState::TryAccept() {
  if (id_ == nullptr || !session_->alive()) {
    // The daemon was lost, or could not be found the last time.
    SDK_RETURN_IF_ERROR(Restart());
  }
  while (true) {
    absl::StatusOr<std::unique_ptr<EventRecord>> record = channel_->state()->GetEvent(Deadline::Immediate());
    if (record.ok()) {
      CmEvent event(std::move(record).value());
      event.AckEarly();
      std::shared_ptr<EndpointState> endpoint = OnEvent(event);
      if (endpoint != nullptr) return endpoint;
    } else if (absl::IsDeadlineExceeded(record.status())) {
      return std::shared_ptr<EndpointState>();
    } else if (!session_->alive()) {
      SDK_RETURN_IF_ERROR(Restart());
    } else {
      return record.status();
    }
  }
}

absl::StatusOr<std::shared_ptr<EndpointState>> ListenerState::Accept(Deadline deadline) {
  while (true) {
    SDK_ASSIGN_OR_RETURN(std::shared_ptr<EndpointState> endpoint, TryAccept());
    if (endpoint != nullptr) return endpoint;
    if (channel_->state()->pipe().WaitFor(deadline) == PipeResult::kTimeout) {
      return absl::DeadlineExceededError(absl::StrCat("accept: local=", address_.ToString(), ": no connection in time"));
    }
  }
}

}  // namespace rdmad::sdk
