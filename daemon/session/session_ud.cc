// verbs.proto: what only datagrams have, address handles and multicast.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/session/convert.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"

namespace rdmad::session {
namespace {

absl::StatusOr<IpAddress> GroupFromMessage(const char* operation, const std::string& gid) {
  RD_ASSIGN_OR_RETURN(const IpAddress group, GidFromMessage(gid, "gid"));
  if (group.is_multicast()) return group;
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": gid=", group.ToString(), " is no multicast address"));
}

}  // namespace

// ---- address handles

absl::StatusOr<Handle> Session::PrepareAh(const v1::CreateAhRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  RD_ASSIGN_OR_RETURN(PdObject * pd, Live(pds_, request.pd()));
  RD_ASSIGN_OR_RETURN(const device::AddressVector av, FromMessage(request.attr()));
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(pd->device_index));
  auto object = std::make_unique<AhObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("create_ah", Resource::kAhs));
  uint32_t number = 0;
  if (!free_slot_handles_.empty()) {
    number = free_slot_handles_.back();
    free_slot_handles_.pop_back();
  } else if (next_slot_handle_ <= engine::kMaxAhs) {
    number = next_slot_handle_++;
  } else {
    return absl::ResourceExhaustedError(
        absl::StrCat("create_ah: no number is left: limit=", engine::kMaxAhs));
  }
  object->slot_handle = NumberHold(&free_slot_handles_, number);
  object->device_index = pd->device_index;
  object->pd = pd->pd.get();
  RD_ASSIGN_OR_RETURN(object->ah, context->CreateAh(*pd->pd, av));
  engine::AhPortInit init;
  init.session = first_lane().port.get();
  init.ah = object->ah.get();
  init.pd = pd->pd.get();
  init.slot_handle = number;
  object->port = first_lane().engine->CreateAhPort(init);
  object->phase = Phase::kPreparing;
  AhObject* ah = object.get();
  RD_ASSIGN_OR_RETURN(const Handle handle, ahs_.Insert(std::move(object)));
  ah->pd_use = UseRef(pd->users, handle);
  return handle;
}

void Session::CreateAh(const v1::CreateAhRequest& request, v1::CreateAhReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PrepareAh(request);
  if (!handle.ok()) return done(handle.status());
  AhObject* made = ahs_.Find(*handle);
  Prepare(*made->ah, [this, made, handle = *handle, reply,
                      done = std::move(done)](absl::Status prepared) {
    // Letting go of one is quick.
    if (!OnPrepared(*ahs_.Find(handle), prepared, done)) return Bury(ahs_, handle);
    AddParts(made);
    Activate({made->ah.get(), made->port.get()}, made->parts, [this, handle, reply, done] {
      const AhObject* ah = MakeLive(ahs_, handle, done);
      if (ah == nullptr) return;
      reply->set_ah(handle);
      reply->set_slot_handle(ah->slot_handle.get());
      done(absl::OkStatus());
    });
  });
}

void Session::DestroyAh(const v1::DestroyAhRequest& request, v1::DestroyAhReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<AhObject*> ah = Live(ahs_, request.ah());
  if (!ah.ok()) return done(ah.status());
  RetireAh(request.ah(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireAh(Handle handle, std::function<void()> on_gone) {
  AhObject* ah = ahs_.Find(handle);
  const bool preparing = ah->phase == Phase::kPreparing;
  if (!BeginRetiring(*ah, std::move(on_gone)) || preparing) return;
  Deactivate({ah->port.get(), ah->ah.get()}, ah->parts, [this, handle] { Bury(ahs_, handle); });
}

// ---- multicast

void Session::AttachMulticast(const v1::AttachMulticastRequest& request, v1::AttachMulticastReply*,
                              Done done) {
  const absl::StatusOr<IpAddress> group = GroupFromMessage("attach_multicast", request.gid());
  if (!group.ok()) return done(group.status());
  Attach(request.qp(), *group, McastUser::kByHand, std::move(done));
}

void Session::DetachMulticast(const v1::DetachMulticastRequest& request, v1::DetachMulticastReply*,
                              Done done) {
  const absl::StatusOr<IpAddress> group = GroupFromMessage("detach_multicast", request.gid());
  if (!group.ok()) return done(group.status());
  Detach(request.qp(), *group, McastUser::kByHand, std::move(done));
}

void Session::Attach(Handle qp_handle, const IpAddress& group, McastUser user, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<QpObject*> qp = Live(qps_, qp_handle);
  if (!qp.ok()) return done(qp.status());
  if (const auto known = (*qp)->groups.find(group); known != (*qp)->groups.end()) {
    MulticastObject* multicast = multicasts_.Find(known->second);
    if (multicast->phase == Phase::kRetiring) {
      // Once the device has let go of the old one.
      multicast->again.push_back({user, std::move(done)});
      return;
    }
    AddUser(user, known->second, multicast);
    if (multicast->phase == Phase::kLive) return done(absl::OkStatus());
    multicast->waiting.push_back(std::move(done));
    return;
  }
  absl::StatusOr<Handle> handle = PrepareMulticast(qp_handle, group, user);
  if (!handle.ok()) return done(handle.status());
  MulticastObject* made = multicasts_.Find(*handle);
  made->waiting.push_back(std::move(done));
  Activate(*qp.value()->lane, {made->attachment.get()}, [this, handle = *handle] {
    MulticastObject* multicast = multicasts_.Find(handle);
    RD_CHECK(multicast != nullptr, "an object outlives its Activate");
    absl::Status status = absl::CancelledError("attach_multicast: the QP was detached meanwhile");
    if (multicast->phase == Phase::kMaking) {
      multicast->phase = Phase::kLive;
      status = absl::OkStatus();
    }
    const std::vector<Done> waiting = std::exchange(multicast->waiting, {});
    for (const Done& told : waiting) told(status);
  });
}

absl::StatusOr<Handle> Session::PrepareMulticast(Handle qp_handle, const IpAddress& group,
                                                 McastUser user) {
  QpObject* qp = qps_.Find(qp_handle);
  if (qp->type != device::QpType::kUd) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attach_multicast: ", HandleText(HandleKind::kQp, qp_handle), " is not of the type UD"));
  }
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(*qp->lane, qp->device_index));
  auto object = std::make_unique<MulticastObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("attach_multicast", Resource::kMulticasts));
  RD_ASSIGN_OR_RETURN(object->attachment, context->AttachMulticast(*qp->qp, group));
  object->qp = qp_handle;
  object->group = group;
  MulticastObject* multicast = object.get();
  RD_ASSIGN_OR_RETURN(const Handle handle, multicasts_.Insert(std::move(object)));
  AddUser(user, handle, multicast);
  qp->groups.emplace(group, handle);
  return handle;
}

void Session::AddUser(McastUser user, Handle handle, MulticastObject* multicast) {
  if (user == McastUser::kCmId) {
    multicast->by_cm_id = true;
  } else {
    multicast->by_hand = UseRef(qps_.Find(multicast->qp)->users, handle);
  }
}

void Session::Detach(Handle qp_handle, const IpAddress& group, McastUser user, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<QpObject*> qp = Live(qps_, qp_handle);
  if (!qp.ok()) return done(qp.status());
  const auto known = (*qp)->groups.find(group);
  MulticastObject* multicast =
      known == (*qp)->groups.end() ? nullptr : multicasts_.Find(known->second);
  if (multicast != nullptr && CancelAgain(*multicast, user)) return done(absl::OkStatus());
  const bool is_user = multicast != nullptr &&
                       (user == McastUser::kCmId ? multicast->by_cm_id : multicast->by_hand.held());
  if (!is_user) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("detach_multicast: ", HandleText(HandleKind::kQp, qp_handle),
                     " is not attached to ", group.ToString())));
  }
  if (user == McastUser::kCmId) {
    multicast->by_cm_id = false;
  } else {
    multicast->by_hand = UseRef();
  }
  if (multicast->by_cm_id || multicast->by_hand.held()) return done(absl::OkStatus());
  RetireMulticast(known->second, [done = std::move(done)] { done(absl::OkStatus()); });
}

// False if `user` was not going to attach again.
bool Session::CancelAgain(MulticastObject& multicast, McastUser user) {
  const auto first = std::stable_partition(
      multicast.again.begin(), multicast.again.end(),
      [user](const MulticastObject::Again& again) { return again.user != user; });
  const std::vector<MulticastObject::Again> cancelled(first, multicast.again.end());
  multicast.again.erase(first, multicast.again.end());
  for (const MulticastObject::Again& again : cancelled) {
    again.done(absl::CancelledError("attach_multicast: the QP was detached meanwhile"));
  }
  return !cancelled.empty();
}

void Session::DetachCmId(const QpObject& qp) {
  const std::map<IpAddress, Handle> groups = qp.groups;
  for (const auto& [group, handle] : groups) {
    MulticastObject* multicast = multicasts_.Find(handle);
    (void)CancelAgain(*multicast, McastUser::kCmId);
    if (!std::exchange(multicast->by_cm_id, false) || multicast->by_hand.held()) continue;
    RetireMulticast(handle, nullptr);
  }
}

void Session::RetireMulticast(Handle handle, std::function<void()> on_gone) {
  MulticastObject* multicast = multicasts_.Find(handle);
  if (!BeginRetiring(*multicast, std::move(on_gone))) return;
  Deactivate(*qps_.Find(multicast->qp)->lane, {multicast->attachment.get()}, [this, handle] {
    MulticastObject* gone = multicasts_.Find(handle);
    const Handle qp = gone->qp;
    const IpAddress group = gone->group;
    const std::vector<MulticastObject::Again> wanted = std::exchange(gone->again, {});
    // The QP is Deactivated, and so buried, after all that is attached to it.
    qps_.Find(qp)->groups.erase(group);
    Bury(multicasts_, handle);
    for (const MulticastObject::Again& again : wanted) Attach(qp, group, again.user, again.done);
  });
}

}  // namespace rdmad::session
