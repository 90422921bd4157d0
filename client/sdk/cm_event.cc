#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/event_channel.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"
#include "rdmad/cm.h"

namespace rdmad {
namespace {

// The reasons that the wire's REJ gives and that people meet. Source: IBTA vol. 1, 12.6.7.2.
const char* RejectReason(int reason) {
  switch (reason) {
    case 1:
      return "the peer has no QP left";
    case 3:
      return "the peer has no resources left";
    case 4:
      return "the peer timed out";
    case 8:
      return "nobody listens on that port";
    case 10:
      return "stale connection";
    case 12:
      return "the peer does not accept this address";
    case 28:
      return "the application refused";
    default:
      return "refused";
  }
}

}  // namespace

CmEvent::CmEvent(std::unique_ptr<sdk::EventRecord> record) noexcept : record_(std::move(record)) {
  CmId* owner = nullptr;
  {
    const std::lock_guard lock(record_->id->mutex);
    owner = record_->id->owner;
  }
  if (record_->new_id == nullptr) {
    id_ = owner;
    return;
  }
  listen_id_ = owner;
  new_id_ = std::make_unique<CmId>(record_->new_id, owner == nullptr ? nullptr : owner->context());
  id_ = new_id_.get();
}

CmEvent::~CmEvent() {
  new_id_ = nullptr;
  record_->Ack();
}

void CmEvent::AckEarly() noexcept { record_->Ack(); }

CmEventType CmEvent::type() const noexcept { return static_cast<CmEventType>(record_->raw.type); }
int CmEvent::status() const noexcept { return record_->raw.status; }
std::unique_ptr<CmId> CmEvent::TakeId() noexcept { return std::move(new_id_); }
const ConnParam& CmEvent::param() const noexcept { return record_->param; }
const UdParam& CmEvent::ud() const noexcept { return record_->ud; }
uint64_t CmEvent::multicast_cookie() const noexcept { return record_->raw.multicast_cookie; }
Mtu CmEvent::path_mtu() const noexcept { return static_cast<Mtu>(record_->raw.path_mtu); }

absl::Status CmEvent::ToStatus() const {
  Address local;
  Address peer;
  {
    // The event updated these when it was read, where it knew better.
    const std::lock_guard lock(record_->id->mutex);
    local = record_->id->local;
    peer = record_->id->peer;
  }
  const auto ends = [&](const char* what) {
    return absl::StrCat(what, ": local=", local.ToString(), " peer=", peer.ToString());
  };
  const int error_number = status() < 0 ? -status() : EIO;
  switch (type()) {
    case CmEventType::kAddrError:
      return sdk::ErrnoToStatus(error_number, ends("resolve_addr"));
    case CmEventType::kRouteError:
      return sdk::ErrnoToStatus(error_number, ends("resolve_route"));
    case CmEventType::kConnectError:
      return sdk::StatusWithErrno(absl::StatusCode::kUnavailable, error_number,
                                  absl::StrCat(ends("connect"), ": could not be established: status=", status()));
    case CmEventType::kUnreachable:
      if (status() > 0) {
        return sdk::StatusWithErrno(absl::StatusCode::kAborted, ECONNREFUSED,
                                    absl::StrCat(ends("connect"), ": refused: sidr_status=", status()));
      }
      return sdk::StatusWithErrno(absl::StatusCode::kUnavailable, error_number,
                                  absl::StrCat(ends("connect"), ": the peer does not answer: status=", status()));
    case CmEventType::kRejected:
      return sdk::StatusWithErrno(
          absl::StatusCode::kAborted, ECONNREFUSED,
          absl::StrCat(ends("connect"), ": rejected: reason=", status(), " (", RejectReason(status()), ")"));
    case CmEventType::kDisconnected:
      return sdk::StatusWithErrno(absl::StatusCode::kOutOfRange, ENOTCONN, ends("connection closed"));
    case CmEventType::kDeviceRemoval:
      return sdk::StatusWithErrno(absl::StatusCode::kUnavailable, ENODEV, ends("device removed"));
    case CmEventType::kMulticastError:
      return sdk::ErrnoToStatus(error_number, ends("multicast"));
    case CmEventType::kAddrResolved:
    case CmEventType::kRouteResolved:
    case CmEventType::kConnectRequest:
    case CmEventType::kConnectResponse:
    case CmEventType::kEstablished:
    case CmEventType::kMulticastJoin:
    case CmEventType::kAddrChange:
    case CmEventType::kTimewaitExit:
      break;
  }
  return absl::OkStatus();
}

EventChannel::EventChannel(std::shared_ptr<sdk::EventChannelState> state) noexcept : state_(std::move(state)) {}
EventChannel::~EventChannel() = default;

absl::StatusOr<std::unique_ptr<EventChannel>> EventChannel::Create(const Client& client) {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::EventChannelState> state, sdk::EventChannelState::Create(session));
  return std::make_unique<EventChannel>(std::move(state));
}

int EventChannel::fd() const noexcept { return state_->pipe().fd(); }

absl::StatusOr<std::unique_ptr<CmEvent>> EventChannel::GetEvent(absl::Duration timeout) {
  SDK_ASSIGN_OR_RETURN(std::unique_ptr<sdk::EventRecord> record, state_->GetEvent(sdk::Deadline::After(timeout)));
  return std::make_unique<CmEvent>(std::move(record));
}

}  // namespace rdmad
