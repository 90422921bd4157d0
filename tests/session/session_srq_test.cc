// Shared receive queues: who uses them, their limit, their events, and what a client may not ask.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "daemon/session/session.h"
#include "proto/shm/work_queue.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

using absl::StatusCode;

v1::DestroySrqRequest DestroySrq(Handle srq) {
  v1::DestroySrqRequest request;
  request.set_srq(srq);
  return request;
}
v1::ModifySrqRequest ModifySrq(Handle srq, uint32_t limit) {
  v1::ModifySrqRequest request;
  request.set_srq(srq);
  request.set_limit(limit);
  return request;
}
v1::QuerySrqRequest QuerySrq(Handle srq) {
  v1::QuerySrqRequest request;
  request.set_srq(srq);
  return request;
}
v1::CreateQpRequest QpWithSrq(Handle pd, Handle cq, Handle srq) {
  v1::CreateQpRequest request = SessionBed::QpRequest(pd, cq);
  request.set_srq(srq);
  return request;
}

class SessionSrq : public ::testing::Test {
 protected:
  SessionSrq() { bed_.Open(); }
  SessionBed bed_;
};

TEST_F(SessionSrq, ReplySaysWhereItsRingIs) {
  v1::CreateSrqRequest request = SessionBed::SrqRequest(bed_.MakePd());
  request.set_max_wr(100);
  request.set_max_sge(5);
  const auto made = bed_.Call(&Session::CreateSrq, request);
  ASSERT_TRUE(made.ok()) << made.status;
  EXPECT_EQ(made.reply.max_wr(), 100u);
  EXPECT_EQ(made.reply.max_sge(), 5u);
  EXPECT_EQ(made.reply.ring().slot_count(), 256u) << "two slots for each WR";
  EXPECT_NE(made.reply.ring().descriptor_tag(), 0u);
  EXPECT_EQ(bed_.session->Counts().srqs(), 1u);
}

TEST_F(SessionSrq, QpWithAnSrqHasNoReceiveRing) {
  const Handle pd = bed_.MakePd();
  v1::CreateQpRequest request = QpWithSrq(pd, bed_.MakeCq(), bed_.MakeSrq(pd));
  request.mutable_cap()->set_max_recv_wr(UINT32_MAX);  // not looked at
  request.mutable_cap()->set_max_recv_sge(UINT32_MAX);
  const auto made = bed_.Call(&Session::CreateQp, request);
  ASSERT_TRUE(made.ok()) << made.status;
  EXPECT_FALSE(made.reply.has_recv_ring());
  EXPECT_EQ(made.reply.cap().max_recv_wr(), 0u);
  EXPECT_EQ(bed_.device.last_qp->init().srq, bed_.device.last_srq);
}

TEST_F(SessionSrq, EveryTypeOfQpMayHaveOne) {
  const Handle pd = bed_.MakePd();
  const Handle cq = bed_.MakeCq();
  const Handle srq = bed_.MakeSrq(pd);
  for (uint32_t type : {2u, 3u, 4u}) {
    v1::CreateQpRequest request = QpWithSrq(pd, cq, srq);
    request.set_qp_type(type);
    EXPECT_TRUE(bed_.Call(&Session::CreateQp, request).ok()) << type;
    EXPECT_EQ(static_cast<uint32_t>(bed_.device.last_qp->init().type), type);
  }
}

TEST_F(SessionSrq, InUseStaysAndNamesItsUser) {
  const Handle pd = bed_.MakePd();
  const Handle srq = bed_.MakeSrq(pd);
  const Handle qp = bed_.Call(&Session::CreateQp, QpWithSrq(pd, bed_.MakeCq(), srq)).reply.qp();
  const auto refused = bed_.Call(&Session::DestroySrq, DestroySrq(srq));
  EXPECT_EQ(refused.status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kQp, qp))) << refused.status;
  v1::DestroyQpRequest destroy_qp;
  destroy_qp.set_qp(qp);
  const auto going = bed_.Start(&Session::DestroyQp, destroy_qp);
  EXPECT_EQ(bed_.Start(&Session::DestroySrq, DestroySrq(srq))->status.code(),
            StatusCode::kFailedPrecondition)
      << "the QP is not gone yet";
  bed_.Settle();
  EXPECT_TRUE(going->ok());
  EXPECT_TRUE(bed_.Call(&Session::DestroySrq, DestroySrq(srq)).ok());
}

TEST_F(SessionSrq, PdInUseByItStays) {
  v1::DeallocPdRequest request;
  request.set_pd(bed_.MakePd());
  const Handle srq = bed_.MakeSrq(request.pd());
  const auto refused = bed_.Call(&Session::DeallocPd, request);
  EXPECT_TRUE(Mentions(refused.status, HandleText(HandleKind::kSrq, srq))) << refused.status;
  EXPECT_TRUE(bed_.Call(&Session::DestroySrq, DestroySrq(srq)).ok());
  EXPECT_TRUE(bed_.Call(&Session::DeallocPd, request).ok());
}

TEST_F(SessionSrq, SizesOverWhatARingHoldsAreRefused) {
  const Handle pd = bed_.MakePd();
  struct Sizes {
    uint32_t max_wr, max_sge, limit;
    bool good;
  };
  for (const Sizes& sizes :
       {Sizes{1, 0, 0, true}, Sizes{shm::kMaxQueueDepth, shm::kMaxSge, 0, true},
        Sizes{0, 1, 0, false}, Sizes{shm::kMaxQueueDepth + 1, 1, 0, false},
        Sizes{UINT32_MAX, 1, 0, false}, Sizes{1, shm::kMaxSge + 1, 0, false},
        Sizes{1, UINT32_MAX, 0, false}, Sizes{8, 1, 8, true}, Sizes{8, 1, 9, false},
        Sizes{8, 1, UINT32_MAX, false}}) {
    v1::CreateSrqRequest request = SessionBed::SrqRequest(pd, sizes.limit);
    request.set_max_wr(sizes.max_wr);
    request.set_max_sge(sizes.max_sge);
    const auto outcome = bed_.Call(&Session::CreateSrq, request);
    EXPECT_EQ(outcome.status.code(), sizes.good ? StatusCode::kOk : StatusCode::kInvalidArgument)
        << sizes.max_wr << " " << sizes.max_sge << " " << sizes.limit << ": " << outcome.status;
  }
  EXPECT_EQ(bed_.session->Counts().srqs(), 3u);
}

TEST_F(SessionSrq, LimitIsArmedBeforeTheReplyAndAsModified) {
  const Handle srq =
      bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(bed_.MakePd(), 5)).reply.srq();
  const auto first = bed_.Call(&Session::QuerySrq, QuerySrq(srq));
  EXPECT_EQ(first.reply.limit(), 5u);
  EXPECT_EQ(first.reply.max_wr(), 8u);
  EXPECT_EQ(first.reply.max_sge(), 1u);
  EXPECT_TRUE(bed_.Call(&Session::ModifySrq, ModifySrq(srq, 8)).ok());
  EXPECT_EQ(bed_.Call(&Session::QuerySrq, QuerySrq(srq)).reply.limit(), 8u);
  EXPECT_EQ(bed_.Call(&Session::ModifySrq, ModifySrq(srq, 9)).status.code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(bed_.Call(&Session::QuerySrq, QuerySrq(srq)).reply.limit(), 8u);
}

TEST_F(SessionSrq, LimitIsArmedAtTheEngineWithTheFirstQp) {
  const Handle pd = bed_.MakePd();
  const Handle srq = bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd, 5)).reply.srq();
  EXPECT_EQ(bed_.device.last_srq->limit(), 0u) << "nobody can take a receive yet";
  EXPECT_TRUE(bed_.Call(&Session::ModifySrq, ModifySrq(srq, 4)).ok());
  EXPECT_TRUE(bed_.Call(&Session::CreateQp, QpWithSrq(pd, bed_.MakeCq(), srq)).ok());
  EXPECT_EQ(bed_.device.last_srq->limit(), 4u);
  EXPECT_TRUE(bed_.Call(&Session::ModifySrq, ModifySrq(srq, 3)).ok());
  EXPECT_EQ(bed_.device.last_srq->limit(), 3u);
  EXPECT_EQ(bed_.Call(&Session::QuerySrq, QuerySrq(srq)).reply.limit(), 3u);
}

TEST_F(SessionSrq, WhoseLimitTheDeviceRefusesIsInError) {
  bed_.device.limit_result = device::QpResult::kBadValue;
  const Handle pd = bed_.MakePd();
  const Handle srq = bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd, 5)).reply.srq();
  EXPECT_TRUE(bed_.Call(&Session::CreateQp, QpWithSrq(pd, bed_.MakeCq(), srq)).ok());
  const std::vector<shm::AsyncEvent> events = bed_.ReadAsync();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, 14u);
  EXPECT_EQ(events[0].handle, srq);
  EXPECT_EQ(bed_.Call(&Session::ModifySrq, ModifySrq(srq, 4)).status.code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SessionSrq, WhatTheDeviceRefusesLeavesNothing) {
  const Handle pd = bed_.MakePd();
  bed_.device.refusal = absl::ResourceExhaustedError("full");
  EXPECT_EQ(bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd)).status.code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(bed_.session->Counts().srqs(), 0u);
  v1::DeallocPdRequest request;
  request.set_pd(pd);
  EXPECT_TRUE(bed_.Call(&Session::DeallocPd, request).ok());
}

TEST_F(SessionSrq, WhoseArenaCannotBeSentIsNotMade) {
  const Handle pd = bed_.MakePd();
  bed_.sender.result = absl::ResourceExhaustedError("full");
  EXPECT_EQ(bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd)).status.code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(bed_.session->Counts().srqs(), 0u);
}

TEST_F(SessionSrq, EventsReachTheClientUnderItsHandle) {
  const Handle pd = bed_.MakePd();
  const Handle srq = bed_.MakeSrq(pd);
  const uint64_t token = bed_.device.last_srq->init().owner_token;
  EXPECT_TRUE(bed_.Call(&Session::CreateQp, QpWithSrq(pd, bed_.MakeCq(), srq)).ok());
  // As a device says it: by the engine.
  bed_.engines[0]->async_sink()->OnAsyncEvent({device::AsyncEventType::kSrqLimitReached, token, 0});
  bed_.Settle();
  const std::vector<shm::AsyncEvent> events = bed_.ReadAsync();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, 15u);
  EXPECT_EQ(events[0].handle, srq);
}

TEST_F(SessionSrq, EventsOfADestroyedOneReachNobody) {
  const Handle pd = bed_.MakePd();
  const Handle srq = bed_.MakeSrq(pd);
  const uint64_t token = bed_.device.last_srq->init().owner_token;
  EXPECT_TRUE(bed_.Call(&Session::DestroySrq, DestroySrq(srq)).ok());
  bed_.MakeSrq(pd);  // takes the slot
  bed_.router.OnQpAsyncEvent({device::AsyncEventType::kSrqErr, token, 0});
  EXPECT_TRUE(bed_.ReadAsync().empty());
}

TEST_F(SessionSrq, HandlesThatAreNoneAreTold) {
  const Handle pd = bed_.MakePd();
  for (Handle wrong : {kNoHandle, pd, Handle{0x7900000001}, UINT64_MAX}) {
    EXPECT_EQ(bed_.Call(&Session::DestroySrq, DestroySrq(wrong)).status.code(),
              StatusCode::kNotFound);
    EXPECT_EQ(bed_.Call(&Session::ModifySrq, ModifySrq(wrong, 0)).status.code(),
              StatusCode::kNotFound);
    EXPECT_EQ(bed_.Call(&Session::QuerySrq, QuerySrq(wrong)).status.code(), StatusCode::kNotFound);
    EXPECT_EQ(bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(wrong == pd ? 0 : wrong))
                  .status.code(),
              StatusCode::kNotFound);
    if (wrong == kNoHandle) continue;
    EXPECT_EQ(bed_.Call(&Session::CreateQp, QpWithSrq(pd, bed_.MakeCq(), wrong)).status.code(),
              StatusCode::kNotFound);
  }
}

TEST_F(SessionSrq, EndWhileItIsMadeModifiedAndDestroyedAnswersAll) {
  const Handle pd = bed_.MakePd();
  const Handle one = bed_.MakeSrq(pd);
  const Handle other = bed_.MakeSrq(pd);
  const Handle cq = bed_.MakeCq();
  for (const Handle srq : {one, other}) {
    v1::DestroyQpRequest destroy;
    destroy.set_qp(bed_.Call(&Session::CreateQp, QpWithSrq(pd, cq, srq)).reply.qp());
    EXPECT_TRUE(bed_.Call(&Session::DestroyQp, destroy).ok());
  }
  const Handle with_limit =
      bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd, 3)).reply.srq();
  bed_.MakeSrq(pd);  // never has a QP
  const auto making_a_qp = bed_.Start(&Session::CreateQp, QpWithSrq(pd, cq, with_limit));
  const auto modifying = bed_.Start(&Session::ModifySrq, ModifySrq(one, 1));
  const auto asking = bed_.Start(&Session::QuerySrq, QuerySrq(one));
  const auto destroying = bed_.Start(&Session::DestroySrq, DestroySrq(other));
  bed_.Close();
  EXPECT_EQ(making_a_qp->status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(modifying->ok());
  EXPECT_TRUE(asking->ok());
  EXPECT_TRUE(destroying->ok());
}

TEST(SessionSrqQuota, IsKeptAndNamed) {
  SessionLimits limits;
  limits.max_srqs = 1;
  SessionBed bed(limits);
  bed.Open();
  const Handle pd = bed.MakePd();
  const Handle srq = bed.MakeSrq(pd);
  const auto refused = bed.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd));
  EXPECT_EQ(refused.status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Mentions(refused.status, "limit=max_srqs value=1 in_use=1")) << refused.status;
  EXPECT_TRUE(bed.Call(&Session::DestroySrq, DestroySrq(srq)).ok());
  EXPECT_TRUE(bed.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd)).ok());
}

}  // namespace
}  // namespace rdmad::session
