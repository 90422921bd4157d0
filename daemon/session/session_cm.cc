// cm.proto: event channels and CM ids.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/session/convert.h"
#include "daemon/session/pipe.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"

namespace rdmad::session {
namespace {

constexpr uint32_t kMaxJoinFlags = 1;  // RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER

absl::StatusOr<SocketAddress> GroupFromMessage(const v1::SocketAddress& message) {
  RD_ASSIGN_OR_RETURN(const SocketAddress group, FromMessage(message, "group"));
  if (group.ip.is_multicast()) return group;
  return absl::InvalidArgumentError(
      absl::StrCat("group=", group.ip.ToString(), " is no multicast address"));
}

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

void Session::CreateEventChannel(const v1::CreateEventChannelRequest&,
                                 v1::CreateEventChannelReply* reply, Done done) {
  const absl::Status status = [&]() -> absl::Status {
    RD_RETURN_IF_ERROR(CheckOpen());
    auto object = std::make_unique<EventChannelObject>();
    RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("create_event_channel", Resource::kChannels));
    RD_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    cm::EventChannelHost* host = this;
    object->channel = std::make_unique<cm::EventChannel>(std::move(pipe.write_end), host);
    object->phase = Phase::kLive;
    const uint64_t tag = NextDescriptorTag();
    RD_RETURN_IF_ERROR(
        sender_->SendDescriptor(tag, v1::DESCRIPTOR_KIND_EVENT_CHANNEL, pipe.read_end.get()));
    RD_ASSIGN_OR_RETURN(const Handle handle, event_channels_.Insert(std::move(object)));
    reply->set_channel(handle);
    reply->set_descriptor_tag(tag);
    return absl::OkStatus();
  }();
  done(status);
}

void Session::DestroyEventChannel(const v1::DestroyEventChannelRequest& request,
                                  v1::DestroyEventChannelReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<EventChannelObject*> channel = Live(event_channels_, request.channel());
  if (!channel.ok()) return done(channel.status());
  Handle user = kNoHandle;
  cm_ids_.ForEach([&](Handle handle, const CmIdObject& id) {
    if (id.channel == request.channel()) user = handle;
  });
  if (user != kNoHandle) {
    return done(absl::FailedPreconditionError(absl::StrCat(
        "destroy_event_channel: ", HandleText(HandleKind::kEventChannel, request.channel()),
        " is used by ", HandleText(HandleKind::kCmId, user))));
  }
  event_channels_.Remove(request.channel());
  done(absl::OkStatus());
}

void Session::OnChannelBlocked(cm::EventChannel& channel) {
  event_channels_.ForEach([this, &channel](Handle, EventChannelObject& object) {
    if (object.channel.get() != &channel) return;
    object.watch = environment_.host->WatchWritable(channel.fd(), [&object] {
      object.channel->OnWritable();
      if (!object.channel->wants_write()) object.watch.reset();
    });
  });
}

void Session::OnChannelOverflow(cm::EventChannel&) {
  environment_.host->EndSession(*this, "does not read its event channel");
}

absl::StatusOr<cm::CmId*> Session::LiveId(Handle handle) const {
  RD_RETURN_IF_ERROR(CheckOpen());
  RD_ASSIGN_OR_RETURN(CmIdObject * object, Live(cm_ids_, handle));
  return object->id.get();
}

void Session::CreateId(const v1::CreateIdRequest& request, v1::CreateIdReply* reply, Done done) {
  const absl::Status status = [&]() -> absl::Status {
    RD_RETURN_IF_ERROR(CheckOpen());
    RD_ASSIGN_OR_RETURN(EventChannelObject * channel, Live(event_channels_, request.channel()));
    RD_ASSIGN_OR_RETURN(const device::PortSpace port_space,
                        PortSpaceFromMessage(request.port_space()));
    if (environment_.connection_manager == nullptr) {
      return absl::UnavailableError("create_id: the daemon has no device; see `rdmactl devices`");
    }
    auto object = std::make_unique<CmIdObject>();
    CmIdObject* id = object.get();
    RD_ASSIGN_OR_RETURN(id->charge, quota_.Take("create_id", Resource::kCmIds));
    id->channel = request.channel();
    id->created_ns = environment_.clock();
    RD_ASSIGN_OR_RETURN(const Handle handle, cm_ids_.Insert(std::move(object)));
    cm::CmIdHost* host = this;
    id->id = std::make_unique<cm::CmId>(environment_.connection_manager, host,
                                        channel->channel.get(), handle, port_space);
    id->phase = Phase::kLive;
    reply->set_id(handle);
    return absl::OkStatus();
  }();
  done(status);
}

absl::StatusOr<uint64_t> Session::AdoptId(std::unique_ptr<cm::CmId> id, cm::CmId& listener) {
  RD_RETURN_IF_ERROR(CheckOpen());
  const CmIdObject* parent = cm_ids_.Find(listener.handle());
  RD_CHECK(parent != nullptr, "a listener is in its session's table");
  auto object = std::make_unique<CmIdObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("connect_request", Resource::kCmIds));
  RD_ASSIGN_OR_RETURN(Charge pending, quota_.Take("connect_request", Resource::kPendingRequests));
  id->HoldWhilePending(std::make_shared<const Charge>(std::move(pending)));
  object->channel = parent->channel;
  object->created_ns = environment_.clock();
  object->id = std::move(id);
  object->phase = Phase::kLive;
  return cm_ids_.Insert(std::move(object));
}

void Session::DiscardId(uint64_t handle) {
  // The end of the session may have taken it first.
  if (cm_ids_.Find(handle) != nullptr) DropCmId(handle);
}

uint32_t Session::DeviceIndex(const device::Device* device) const {
  return environment_.devices->IndexOf(device);
}

void Session::AttachQp(uint64_t handle, const IpAddress& group,
                       std::function<void(absl::Status)> done) {
  const CmIdObject* id = cm_ids_.Find(handle);
  if (id == nullptr) return done(absl::CancelledError("join_multicast: the id was destroyed"));
  Attach(id->qp, group, McastUser::kCmId, std::move(done));
}

void Session::DetachQp(uint64_t handle, const IpAddress& group) {
  const CmIdObject* id = cm_ids_.Find(handle);
  // It is not attached if the QP or the device refused.
  if (id != nullptr) Detach(id->qp, group, McastUser::kCmId, [](const absl::Status&) {});
}

void Session::UnbindQp(CmIdObject& id) {
  QpObject* qp = qps_.Find(std::exchange(id.qp, kNoHandle));
  if (qp == nullptr) return;
  qp->cm_id = kNoHandle;
  DetachCmId(*qp);
  id.id->ClearQp();
}

void Session::DropCmId(Handle handle) {
  std::unique_ptr<CmIdObject> object = cm_ids_.Remove(handle);
  const Handle qp_handle = object->qp;
  if (QpObject* qp = qps_.Find(qp_handle)) qp->cm_id = kNoHandle;
  // The id's destructor moves the QP to ERR, which is still active: Deactivate comes after. What its
  // attachments come to is not told to an id that goes.
  object.reset();
  if (const QpObject* qp = qps_.Find(qp_handle)) DetachCmId(*qp);
}

void Session::DestroyId(const v1::DestroyIdRequest& request, v1::DestroyIdReply* reply, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  reply->set_events_reported((*id)->events_reported());
  DropCmId(request.id());
  done(absl::OkStatus());
}

void Session::MigrateId(const v1::MigrateIdRequest& request, v1::MigrateIdReply* reply, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<EventChannelObject*> channel = Live(event_channels_, request.channel());
  if (!channel.ok()) return done(channel.status());
  const cm::CmId::Migration migration = (*id)->Migrate((*channel)->channel.get());
  cm_ids_.Find(request.id())->channel = request.channel();
  for (const Handle handle : migration.requests) {
    CmIdObject* const requested = cm_ids_.Find(handle);
    if (requested == nullptr) continue;
    requested->id->Migrate((*channel)->channel.get());
    requested->channel = request.channel();
  }
  reply->set_events_reported(migration.events_reported);
  reply->set_generation(migration.generation);
  done(absl::OkStatus());
}

void Session::SetOption(const v1::SetOptionRequest& request, v1::SetOptionReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  done((*id)->SetOption(request.level(), request.option(), Bytes(request.value())));
}

void Session::FillIdState(const cm::CmId& id, v1::IdState* state) const {
  ToMessage(id.local(), state->mutable_local());
  ToMessage(id.peer(), state->mutable_peer());
  state->set_device_index(DeviceIndex(id.device()));
  state->set_port_num(1);
}

void Session::BindAddr(const v1::BindAddrRequest& request, v1::BindAddrReply* reply, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<SocketAddress> local = FromMessage(request.local(), "local");
  if (!local.ok()) return done(local.status());
  const absl::Status bound = (*id)->BindAddr(*local);
  if (bound.ok()) FillIdState(**id, reply->mutable_state());
  done(bound);
}

void Session::ResolveAddr(const v1::ResolveAddrRequest& request, v1::ResolveAddrReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<SocketAddress> local = FromMessage(request.local(), "local");
  if (!local.ok()) return done(local.status());
  absl::StatusOr<SocketAddress> peer = FromMessage(request.peer(), "peer");
  if (!peer.ok()) return done(peer.status());
  done((*id)->ResolveAddr(*local, *peer, request.timeout_ms()));
}

void Session::ResolveRoute(const v1::ResolveRouteRequest& request, v1::ResolveRouteReply*,
                           Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  done((*id)->ResolveRoute(request.timeout_ms()));
}

void Session::Listen(const v1::ListenRequest& request, v1::ListenReply* reply, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  const absl::Status listening = (*id)->Listen(request.backlog());
  if (listening.ok()) FillIdState(**id, reply->mutable_state());
  done(listening);
}

void Session::SetQp(const v1::SetQpRequest& request, v1::SetQpReply*, Done done) {
  absl::StatusOr<cm::CmId*> live = LiveId(request.id());
  if (!live.ok()) return done(live.status());
  CmIdObject* id = cm_ids_.Find(request.id());
  if (request.qp() == kNoHandle) {
    UnbindQp(*id);
    return done(absl::OkStatus());
  }
  absl::StatusOr<QpObject*> qp = Live(qps_, request.qp());
  if (!qp.ok()) return done(qp.status());
  if (id->qp != kNoHandle) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("set_qp: ", HandleText(HandleKind::kCmId, request.id()), " has ",
                     HandleText(HandleKind::kQp, id->qp), " already")));
  }
  if ((*qp)->cm_id != kNoHandle) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("set_qp: ", HandleText(HandleKind::kQp, request.qp()), " belongs to ",
                     HandleText(HandleKind::kCmId, (*qp)->cm_id))));
  }
  if (!IsOfDevice(**qp, id->id->device())) {
    return done(absl::InvalidArgumentError("set_qp: the QP and the id are of different devices"));
  }
  id->qp = request.qp();
  (*qp)->cm_id = request.id();
  id->id->SetQp((*qp)->qp.get(), (*qp)->type, (*qp)->lane->engine,
                [this, handle = request.id(), qp = request.qp(),
                 done = std::move(done)](absl::Status status) {
                  CmIdObject* bound = cm_ids_.Find(handle);
                  if (!status.ok() && bound != nullptr && bound->qp == qp) UnbindQp(*bound);
                  done(status);
                });
}

absl::StatusOr<device::ConnParam> Session::OwnConnParam(const char* operation, const cm::CmId& id,
                                                        const v1::ConnParam& message) const {
  const CmIdObject* const object = cm_ids_.Find(id.handle());
  const QpObject* const bound = object == nullptr ? nullptr : qps_.Find(object->qp);
  // It may have been bound before the id had a device.
  if (bound != nullptr && !IsOfDevice(*bound, id.device())) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": the QP and the id are of different devices"));
  }
  absl::StatusOr<device::ConnParam> param = FromMessage(message);
  if (!param.ok() || param->qpn == 0) return param;
  // A peer takes the number for the truth: naming another session's QP would end its connection.
  bool own = false;
  qps_.ForEach([&](Handle, const QpObject& qp) {
    own = own || (qp.phase == Phase::kLive && qp.qp->qpn() == param->qpn &&
                  IsOfDevice(qp, id.device()));
  });
  if (own) return param;
  return absl::InvalidArgumentError(absl::StrCat(
      operation, ": qpn=", param->qpn, ": the session has no such QP on the id's device"));
}

bool Session::IsOfDevice(const QpObject& qp, const device::Device* device) const {
  return device == nullptr || environment_.devices->Find(qp.device_index) == device;
}

void Session::Connect(const v1::ConnectRequest& request, v1::ConnectReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<device::ConnParam> param = OwnConnParam("connect", **id, request.param());
  if (!param.ok()) return done(param.status());
  done((*id)->Connect(*std::move(param)));
}

void Session::Accept(const v1::AcceptRequest& request, v1::AcceptReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<device::ConnParam> param = OwnConnParam("accept", **id, request.param());
  if (!param.ok()) return done(param.status());
  (*id)->Accept(*std::move(param), std::move(done));
}

void Session::Reject(const v1::RejectRequest& request, v1::RejectReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  done((*id)->Reject(Bytes(request.private_data())));
}

void Session::Establish(const v1::EstablishRequest& request, v1::EstablishReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  done((*id)->Establish());
}

void Session::Disconnect(const v1::DisconnectRequest& request, v1::DisconnectReply* reply,
                         Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  (*id)->Disconnect([reply, done = std::move(done)](const absl::StatusOr<bool>& event_follows) {
    reply->set_over(event_follows.ok() && !*event_follows);
    done(event_follows.status());
  });
}

void Session::Notify(const v1::NotifyRequest& request, v1::NotifyReply*, Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  done((*id)->Notify(request.event()));
}

void Session::InitQpAttr(const v1::InitQpAttrRequest& request, v1::InitQpAttrReply* reply,
                         Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  absl::StatusOr<device::QpState> state = QpStateFromMessage(request.qp_state());
  if (!state.ok()) return done(state.status());
  absl::StatusOr<device::QpAttr> attr = (*id)->InitQpAttr(*state);
  if (!attr.ok()) return done(attr.status());
  ToMessage(*attr, reply->mutable_attr());
  reply->set_attr_mask(attr->mask);
  done(absl::OkStatus());
}

void Session::JoinMulticast(const v1::JoinMulticastRequest& request, v1::JoinMulticastReply*,
                            Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  const absl::StatusOr<SocketAddress> group = GroupFromMessage(request.group());
  if (!group.ok()) return done(group.status());
  if (request.join_flags() > kMaxJoinFlags) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("join_flags=", request.join_flags(), ": allowed are 0 to ", kMaxJoinFlags)));
  }
  done((*id)->JoinMulticast(*group, request.join_flags(), request.cookie()));
}

void Session::LeaveMulticast(const v1::LeaveMulticastRequest& request, v1::LeaveMulticastReply*,
                             Done done) {
  absl::StatusOr<cm::CmId*> id = LiveId(request.id());
  if (!id.ok()) return done(id.status());
  const absl::StatusOr<SocketAddress> group = GroupFromMessage(request.group());
  if (!group.ok()) return done(group.status());
  done((*id)->LeaveMulticast(*group));
}

}  // namespace rdmad::session
