// verbs.proto: shared receive queues.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/memory/queue_layout.h"
#include "daemon/session/session.h"
#include "daemon/session/session_tables.h"
#include "proto/shm/work_queue.h"

namespace rdmad::session {
namespace {

absl::Status CheckRange(const char* name, uint32_t value, uint32_t least, uint32_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("create_srq: ", name, "=", value, ": allowed are ", least, " to ", most));
}

absl::Status CheckLimit(const char* operation, uint32_t limit, uint32_t max_wr) {
  if (limit <= max_wr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": limit=", limit, ": allowed are 0 to max_wr=", max_wr));
}

absl::Status LimitError(Handle handle, device::QpResult result) {
  if (result == device::QpResult::kOk) return absl::OkStatus();
  const std::string what = absl::StrCat("modify_srq: ", HandleText(HandleKind::kSrq, handle));
  if (result == device::QpResult::kGone)
    return absl::UnavailableError(what + ": its device is gone");
  return absl::InvalidArgumentError(what + ": the device refuses the limit");
}

}  // namespace

absl::StatusOr<Handle> Session::PrepareSrq(const v1::CreateSrqRequest& request) {
  RD_RETURN_IF_ERROR(CheckOpen());
  auto object = std::make_unique<SrqObject>();
  RD_ASSIGN_OR_RETURN(object->charge, quota_.Take("create_srq", Resource::kSrqs));
  SrqObject* srq = object.get();
  // The PD and the event router want to know the handle.
  RD_ASSIGN_OR_RETURN(const Handle handle, srqs_.Insert(std::move(object)));
  absl::Status filled = FillSrq(request, handle, srq);
  if (filled.ok()) return handle;
  srqs_.Remove(handle);
  return filled;
}

absl::Status Session::FillSrq(const v1::CreateSrqRequest& request, Handle handle, SrqObject* srq) {
  RD_ASSIGN_OR_RETURN(PdObject * pd, Live(pds_, request.pd()));
  // The device checks its own limits.
  RD_RETURN_IF_ERROR(CheckRange("max_wr", request.max_wr(), 1, shm::kMaxQueueDepth));
  RD_RETURN_IF_ERROR(CheckRange("max_sge", request.max_sge(), 0, shm::kMaxSge));
  RD_RETURN_IF_ERROR(CheckLimit("create_srq", request.limit(), request.max_wr()));
  RD_ASSIGN_OR_RETURN(srq->lane, LaneOf("create_srq", request.comp_vector()));
  srq->device_index = pd->device_index;
  srq->pd = pd->pd.get();
  srq->pd_use = UseRef(pd->users, handle);
  srq->token = EventToken(environment_.router, this, handle);
  srq->limit = request.limit();
  srq->asked_wr = request.max_wr();
  srq->asked_sge = request.max_sge();
  RD_ASSIGN_OR_RETURN(srq->doorbell, TakeDoorbell("create_srq", *srq->lane));
  RD_ASSIGN_OR_RETURN(srq->srq, MakeDeviceSrq(*srq, *srq->lane));
  RD_CHECK(srq->srq->max_wr() <= shm::kMaxQueueDepth && srq->srq->max_sge() <= shm::kMaxSge,
           "a device grants what a ring can hold");
  srq->slots = memory::WorkQueueSlots(srq->srq->max_wr(), srq->srq->max_sge(), 0);
  RD_ASSIGN_OR_RETURN(srq->ring, AllocateRing(shm::WorkQueueBytes(srq->slots)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<device::Srq>> Session::MakeDeviceSrq(const SrqObject& srq,
                                                                    Lane& lane) {
  RD_ASSIGN_OR_RETURN(device::Context * context, ContextOn(lane, srq.device_index));
  device::SrqInit init;
  init.max_wr = srq.asked_wr;
  init.max_sge = srq.asked_sge;
  init.owner_token = srq.token.value();
  return context->CreateSrq(*srq.pd, init);
}

absl::Status Session::BringSrq(SrqObject* srq, Lane& lane) {
  if (srq->lane == &lane) return absl::OkStatus();
  RD_ASSIGN_OR_RETURN(NumberHold doorbell, TakeDoorbell("create_qp", lane));
  const uint32_t max_wr = srq->srq->max_wr();
  const uint32_t max_sge = srq->srq->max_sge();
  RD_ASSIGN_OR_RETURN(std::unique_ptr<device::Srq> made, MakeDeviceSrq(*srq, lane));
  if (made->max_wr() < max_wr || made->max_sge() < max_sge) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "create_qp: the device grants ", made->max_wr(), " receives of ", made->max_sge(),
        " SGEs to the SRQ, and had granted ", max_wr, " of ", max_sge));
  }
  srq->srq = std::move(made);
  srq->doorbell = std::move(doorbell);
  srq->lane = &lane;
  return absl::OkStatus();
}

void Session::PlaceSrq(Handle handle, SrqObject* srq, std::function<void()> then) {
  engine::SrqPortInit port;
  port.session = srq->lane->port.get();
  port.srq = srq->srq.get();
  port.ring = {srq->ring.get().addr, srq->slots};
  port.doorbell_index = srq->doorbell.get();
  port.owner_token = srq->token.value();
  srq->port = srq->lane->engine->CreateSrqPort(port);
  srq->placed = true;
  Activate(*srq->lane, {srq->srq.get(), srq->port.get()}, std::move(then));
  if (srq->limit == 0) return;
  ++commands_in_flight_;
  srq->lane->engine->SetSrqLimit(*srq->srq, srq->limit, [this, handle](device::QpResult result) {
    // It was within what was granted, so something is wrong with it.
    OnAnswer([&] {
      if (result != device::QpResult::kOk) OnAsyncEvent(handle, device::AsyncEventType::kSrqErr);
    });
  });
}

void Session::CreateSrq(const v1::CreateSrqRequest& request, v1::CreateSrqReply* reply, Done done) {
  absl::StatusOr<Handle> handle = PrepareSrq(request);
  if (!handle.ok()) return done(handle.status());
  AnswerSrq(*handle, reply, done);
}

void Session::AnswerSrq(Handle handle, v1::CreateSrqReply* reply, const Done& done) {
  const SrqObject* srq = MakeLive(srqs_, handle, done);
  if (srq == nullptr) return;
  absl::Status sent = Deliver(srq->ring, srq->slots, reply->mutable_ring());
  if (sent.ok()) sent = DeliverLane(*srq->lane, [reply] { return reply->mutable_lane(); });
  if (!sent.ok()) return RetireSrq(handle, [done, sent] { done(sent); });
  reply->set_srq(handle);
  reply->set_max_wr(srq->srq->max_wr());
  reply->set_max_sge(srq->srq->max_sge());
  reply->set_doorbell_index(srq->doorbell.get());
  done(absl::OkStatus());
}

void Session::ModifySrq(const v1::ModifySrqRequest& request, v1::ModifySrqReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  const Handle handle = request.srq();
  absl::StatusOr<SrqObject*> srq = Live(srqs_, handle);
  if (!srq.ok()) return done(srq.status());
  const absl::Status allowed = CheckLimit("modify_srq", request.limit(), (*srq)->srq->max_wr());
  if (!allowed.ok()) return done(allowed);
  if (!(*srq)->placed) {
    (*srq)->limit = request.limit();
    return done(absl::OkStatus());
  }
  ++commands_in_flight_;
  (*srq)->lane->engine->SetSrqLimit(
      *(*srq)->srq, request.limit(),
      [this, handle, done = std::move(done)](device::QpResult result) {
        OnAnswer([&] { done(LimitError(handle, result)); });
      });
}

void Session::QuerySrq(const v1::QuerySrqRequest& request, v1::QuerySrqReply* reply, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<SrqObject*> srq = Live(srqs_, request.srq());
  if (!srq.ok()) return done(srq.status());
  reply->set_max_wr((*srq)->srq->max_wr());
  reply->set_max_sge((*srq)->srq->max_sge());
  if (!(*srq)->placed) {
    reply->set_limit((*srq)->limit);
    return done(absl::OkStatus());
  }
  ++commands_in_flight_;
  (*srq)->lane->engine->QuerySrqLimit(*(*srq)->srq,
                                      [this, reply, done = std::move(done)](uint32_t limit) {
                                        OnAnswer([&] {
                                          reply->set_limit(limit);
                                          done(absl::OkStatus());
                                        });
                                      });
}

void Session::DestroySrq(const v1::DestroySrqRequest& request, v1::DestroySrqReply*, Done done) {
  if (absl::Status open = CheckOpen(); !open.ok()) return done(open);
  absl::StatusOr<SrqObject*> srq = Live(srqs_, request.srq());
  if (!srq.ok()) return done(srq.status());
  if (!(*srq)->users.empty()) {
    return done(absl::FailedPreconditionError(
        absl::StrCat("destroy_srq: ", HandleText(HandleKind::kSrq, request.srq()), " is used by ",
                     (*srq)->users.Text())));
  }
  RetireSrq(request.srq(), [done = std::move(done)] { done(absl::OkStatus()); });
}

void Session::RetireSrq(Handle handle, std::function<void()> on_gone) {
  SrqObject* srq = srqs_.Find(handle);
  if (!BeginRetiring(*srq, std::move(on_gone))) return;
  if (!srq->placed && srq->users.empty()) return Bury(srqs_, handle);
  // At the end of a session it goes behind QPs that were being made, which go by way of its engine.
  if (!srq->placed) PlaceSrq(handle, srq, nullptr);
  Deactivate(*srq->lane, {srq->port.get(), srq->srq.get()},
             [this, handle] { Bury(srqs_, handle); });
}

}  // namespace rdmad::session
