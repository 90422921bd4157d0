// verbs.proto: queue pairs.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/memory/queue_layout.h"
#include "daemon/session/convert.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/work_queue.h"

namespace rdmad::session {
namespace {

absl::Status CheckCap(const char* name, uint32_t value, uint32_t most) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("create_qp: cap.", name, "=", value, ": allowed are 0 to ", most));
}

// What the rings can hold; the device checks its own limits. With an SRQ there is no receive ring.
absl::Status CheckCaps(const device::QpCap& cap, bool has_srq) {
  RD_RETURN_IF_ERROR(CheckCap("max_send_wr", cap.max_send_wr, shm::kMaxQueueDepth));
  if (!has_srq) {
    RD_RETURN_IF_ERROR(CheckCap("max_recv_wr", cap.max_recv_wr, shm::kMaxQueueDepth));
    RD_RETURN_IF_ERROR(CheckCap("max_recv_sge", cap.max_recv_sge, shm::kMaxSge));
  }
  RD_RETURN_IF_ERROR(CheckCap("max_send_sge", cap.max_send_sge, shm::kMaxSge));
  return CheckCap("max_inline_bytes", cap.max_inline_bytes, shm::kMaxInlineBytes);
}

absl::Status CheckSameDevice(const char* what, uint32_t pd_device, uint32_t device) {
  if (device == pd_device) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("create_qp: the PD is of device ", pd_device, ", ",
                                                 what, " of device ", device));
}

// `other` is of what the QP has beside its send CQ.
absl::Status CheckSameLane(const char* what, const Lane* send_cq, const Lane* other) {
  if (other == send_cq) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "create_qp: the send CQ is of completion vector ", send_cq->comp_vector, ", the ", what,
      " of ", other->comp_vector, ": make all that a QP uses with the same comp_vector"));
}

absl::Status ModifyError(Handle handle, device::QpResult result) {
  const std::string what = absl::StrCat("modify_qp: ", HandleText(HandleKind::kQp, handle), ": ");
  switch (result) {
    case device::QpResult::kOk:
      return absl::OkStatus();
    case device::QpResult::kIllegalTransition:
      return absl::InvalidArgumentError(what + "this change of state is not legal");
    case device::QpResult::kMissingAttr:
      return absl::InvalidArgumentError(what +
                                        "an attribute that this change of state needs is missing");
    case device::QpResult::kExtraAttr:
      return absl::InvalidArgumentError(what +
                                        "an attribute that this change of state does not allow");
    case device::QpResult::kBadValue:
      return absl::InvalidArgumentError(what + "an attribute's value is out of the device's range");
    case device::QpResult::kGone:
      return absl::UnavailableError(what + "its device is gone");
  }
  return absl::InternalError(what + "unknown result");
}

}  // namespace

absl::StatusOr<NumberHold> Session::TakeDoorbell(const char* operation, Lane& lane) {
  uint32_t index = 0;
  if (!lane.free_doorbells.empty()) {
    index = lane.free_doorbells.back();
    lane.free_doorbells.pop_back();
  } else if (lane.next_doorbell < shm::kMaxDoorbells) {
    index = lane.next_doorbell++;
  } else {
    return absl::ResourceExhaustedError(
        absl::StrCat(operation, ": the session has no doorbell left: limit=", shm::kMaxDoorbells));
  }
  return NumberHold(&lane.free_doorbells, index);
}

absl::StatusOr<Handle> Session::PrepareQp(const v1::CreateQpRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  auto object = std::make_unique<QpObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("create_qp", Resource::kQps));
  QpObject* qp = object.get();
  // Its users and the event router want to know the handle.
  RD_ASSIGN_OR_RETURN(const Handle handle, qps_.Insert(std::move(object)));
  absl::Status filled = FillQp(request, handle, qp);
  if (filled.ok()) return handle;
  qps_.Remove(handle);
  return filled;
}

absl::Status Session::FillQp(const v1::CreateQpRequest& request, Handle handle, QpObject* qp) {
  RD_ASSIGN_OR_RETURN(PdObject * pd, Live(pds_, request.pd()));
  RD_ASSIGN_OR_RETURN(CqObject * send_cq, Live(cqs_, request.send_cq()));
  RD_ASSIGN_OR_RETURN(CqObject * recv_cq, Live(cqs_, request.recv_cq()));
  SrqObject* srq = nullptr;
  if (request.srq() != kNoHandle) {
    RD_ASSIGN_OR_RETURN(srq, Live(srqs_, request.srq()));
    RD_RETURN_IF_ERROR(CheckSameDevice("an SRQ", pd->device_index, srq->device_index));
  }
  for (const CqObject* cq : {send_cq, recv_cq}) {
    RD_RETURN_IF_ERROR(CheckSameDevice("a CQ", pd->device_index, cq->device_index));
    if (cq->overrun) {
      return absl::FailedPreconditionError(
          "create_qp: its CQ has overrun and drops completions: destroy it and create a larger one");
    }
  }
  RD_RETURN_IF_ERROR(CheckSameLane("receive CQ", send_cq->lane, recv_cq->lane));
  // One that is being made may take the SRQ with it.
  if (srq != nullptr && (srq->placed || !srq->users.empty())) {
    RD_RETURN_IF_ERROR(CheckSameLane("SRQ", send_cq->lane, srq->lane));
  }
  Lane& lane = *send_cq->lane;
  device::QpInit init;
  RD_ASSIGN_OR_RETURN(init.type, QpTypeFromMessage(request.qp_type()));
  init.cap = FromMessage(request.cap());
  RD_RETURN_IF_ERROR(CheckCaps(init.cap, srq != nullptr));
  if (srq != nullptr) init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(lane, pd->device_index));

  qp->lane = &lane;
  qp->type = init.type;
  qp->device_index = pd->device_index;
  qp->counted = Counted(&++qps_by_device_[pd->device_index]);
  qp->pd_use = UseRef(pd->users, handle);
  qp->send_cq_use = UseRef(send_cq->users, handle);
  qp->recv_cq_use = UseRef(recv_cq->users, handle);
  if (srq != nullptr) {
    if (!srq->placed) RD_RETURN_IF_ERROR(BringSrq(srq, lane));
    qp->srq_use = UseRef(srq->users, handle);
    qp->srq = request.srq();
  }
  qp->token = EventToken(environment_.router, this, handle);
  RD_ASSIGN_OR_RETURN(qp->doorbell, TakeDoorbell("create_qp", lane));
  init.send_cq = send_cq->cq.get();
  init.recv_cq = recv_cq->cq.get();
  if (srq != nullptr) init.srq = srq->srq.get();
  init.signal_all = request.signal_all();
  init.cookie = request.cookie();
  init.owner_token = qp->token.value();
  RD_ASSIGN_OR_RETURN(qp->qp, context->CreateQp(*pd->pd, init));

  const device::QpCap& cap = qp->qp->cap();
  RD_CHECK(CheckCaps(cap, srq != nullptr).ok(), "a device grants what a ring can hold");
  qp->send_slots = memory::WorkQueueSlots(cap.max_send_wr, cap.max_send_sge, cap.max_inline_bytes);
  RD_ASSIGN_OR_RETURN(qp->send_ring, AllocateRing(shm::WorkQueueBytes(qp->send_slots)));
  if (srq == nullptr) {
    qp->recv_slots = memory::WorkQueueSlots(cap.max_recv_wr, cap.max_recv_sge, 0);
    RD_ASSIGN_OR_RETURN(qp->recv_ring, AllocateRing(shm::WorkQueueBytes(qp->recv_slots)));
  }
  engine::QueuePairPortInit port;
  port.session = lane.port.get();
  port.qp = qp->qp.get();
  port.pd = pd->pd.get();
  port.send_cq = send_cq->port.get();
  port.recv_cq = recv_cq->port.get();
  port.send_ring = {qp->send_ring.get().addr, qp->send_slots};
  if (srq == nullptr) port.recv_ring = {qp->recv_ring.get().addr, qp->recv_slots};
  port.doorbell_index = qp->doorbell.get();
  port.owner_token = qp->token.value();
  qp->port = lane.engine->CreateQueuePairPort(port);
  return absl::OkStatus();
}

void Session::CreateQp(const v1::CreateQpRequest& request, v1::CreateQpReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PrepareQp(request);
  if (!handle.ok()) return done(handle.status());
  const QpObject* made = qps_.Find(*handle);
  Activate(*made->lane, {made->qp.get(), made->port.get()},
           [this, handle = *handle, id = request.cm_id(), reply, done = std::move(done)] {
             if (MakeLive(qps_, handle, done) == nullptr) return;
             if (id == kNoHandle) return DeliverQp(handle, reply, done);
             BindNewQp(handle, id, reply, done);
           });
}

void Session::BindNewQp(Handle handle, Handle id, v1::CreateQpReply* reply, Done done) {
  v1::SetQpRequest bind;
  bind.set_id(id);
  bind.set_qp(handle);
  SetQp(bind, nullptr, [this, handle, reply, done = std::move(done)](const absl::Status& bound) {
    if (bound.ok()) return DeliverQp(handle, reply, done);
    // Perhaps because it goes.
    if (qps_.Find(handle) == nullptr) return done(bound);
    RetireQp(handle, [done, bound] { done(bound); });
  });
}

// Last: a queue that is delivered is the client's.
void Session::DeliverQp(Handle handle, v1::CreateQpReply* reply, const Done& done) {
  const absl::StatusOr<QpObject*> live = Live(qps_, handle);
  if (!live.ok()) return done(live.status());  // the client destroyed it before it had it
  const QpObject* const qp = *live;
  absl::Status sent = Deliver(qp->send_ring, qp->send_slots, reply->mutable_send_ring());
  if (sent.ok() && qp->recv_ring.valid())
    sent = Deliver(qp->recv_ring, qp->recv_slots, reply->mutable_recv_ring());
  if (!sent.ok()) return RetireQp(handle, [done, sent] { done(sent); });
  reply->set_qp(handle);
  reply->set_qpn(qp->qp->qpn());
  ToMessage(qp->qp->cap(), reply->mutable_cap());
  reply->set_doorbell_index(qp->doorbell.get());
  SrqObject* const srq = srqs_.Find(qp->srq);
  if (srq == nullptr) return done(absl::OkStatus());
  reply->set_srq_doorbell_index(srq->doorbell.get());
  if (srq->placed) return done(absl::OkStatus());
  PlaceSrq(qp->srq, srq, [this, done] {
    done(closing() ? absl::CancelledError("the session has ended") : absl::OkStatus());
  });
}

void Session::ModifyQp(const v1::ModifyQpRequest& request, v1::ModifyQpReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  const Handle handle = request.qp();
  absl::StatusOr<QpObject*> qp = Live(qps_, handle);
  if (!qp.ok()) return done(qp.status());
  absl::StatusOr<device::QpAttr> attr = FromMessage(request.attr(), request.attr_mask());
  if (!attr.ok()) return done(attr.status());
  ++commands_in_flight_;
  (*qp)->lane->engine->ModifyQp(*(*qp)->qp, *attr,
                                [this, handle, done = std::move(done)](device::QpResult result) {
                                  OnAnswer([&] { done(ModifyError(handle, result)); });
                                });
}

void Session::QueryQp(const v1::QueryQpRequest& request, v1::QueryQpReply* reply, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<QpObject*> qp = Live(qps_, request.qp());
  if (!qp.ok()) return done(qp.status());
  ToMessage((*qp)->qp->cap(), reply->mutable_cap());
  ++commands_in_flight_;
  (*qp)->lane->engine->QueryQp(*(*qp)->qp,
                               [this, reply, done = std::move(done)](const device::QpAttr& attr) {
                                 OnAnswer([&] {
                                   ToMessage(attr, reply->mutable_attr());
                                   done(absl::OkStatus());
                                 });
                               });
}

void Session::DestroyQp(const v1::DestroyQpRequest& request, v1::DestroyQpReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<QpObject*> qp = Live(qps_, request.qp());
  if (!qp.ok()) return done(qp.status());
  if (!(*qp)->users.empty()) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("destroy_qp: ", HandleText(HandleKind::kQp, request.qp()), " is used by ",
                     (*qp)->users.Text())));
  }
  RetireQp(request.qp(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireQp(Handle handle, std::function<void()> on_gone) {
  QpObject* qp = qps_.Find(handle);
  if (!BeginRetiring(*qp, std::move(on_gone))) return;
  // The id must let go before the engine does.
  if (CmIdObject* id = cm_ids_.Find(qp->cm_id)) UnbindQp(*id);
  const std::map<IpAddress, Handle> groups = qp->groups;
  for (const auto& [group, attachment] : groups) RetireMulticast(attachment, nullptr);
  Deactivate(*qp->lane, {qp->port.get(), qp->qp.get()}, [this, handle] { Bury(qps_, handle); });
}

}  // namespace rdmad::session
