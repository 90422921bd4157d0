// An SRQ goes to the engine of its first QP. If that QP is refused after the SRQ has moved, nothing
// has happened to the SRQ: its receives wait, and another QP takes it to whichever engine.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/session/session.h"
#include "proto/shm/work_queue.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

using absl::StatusCode;

constexpr uint32_t kEngines = 3;

SessionLimits LittleMemory() {
  SessionLimits limits;
  limits.max_arena_bytes = 1 << 20;
  return limits;
}

// Has an SRQ with two receives in its ring, and a CQ on each engine.
class SessionSrqMove : public ::testing::Test {
 protected:
  SessionSrqMove() {
    bed_.Open();
    pd_ = bed_.MakePd();
    const auto srq = bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd_));
    srq_ = srq.reply.srq();
    const v1::QueueLocation& ring = srq.reply.ring();
    arena_bytes_ = ring.arena_bytes();
    arena_ = ::mmap(nullptr, arena_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED,
                    bed_.sender.sent.at(ring.descriptor_tag()).fd.get(), 0);
    RD_CHECK(arena_ != MAP_FAILED);
    reinterpret_cast<shm::WorkQueueHeader*>(static_cast<std::byte*>(arena_) + ring.offset_bytes())
        ->tail.store(2, std::memory_order_release);  // receives of nothing
    for (uint32_t vector = 0; vector < kEngines; ++vector) {
      v1::CreateCqRequest request = SessionBed::CqRequest();
      request.set_comp_vector(vector);
      cqs_.push_back(bed_.Call(&Session::CreateCq, request).reply.cq());
    }
  }
  ~SessionSrqMove() override { ::munmap(arena_, arena_bytes_); }

  v1::CreateQpRequest QpOn(uint32_t vector) const {
    v1::CreateQpRequest request = SessionBed::QpRequest(pd_, cqs_[vector]);
    request.set_srq(srq_);
    return request;
  }
  void ExpectWholeAndFree() {
    EXPECT_EQ(bed_.session->Counts().qps(), 0u);
    EXPECT_EQ(bed_.session->Counts().srqs(), 1u);
    EXPECT_TRUE(bed_.device.last_srq->wr_ids.empty()) << "its receives wait";
    v1::QuerySrqRequest query;
    query.set_srq(srq_);
    EXPECT_TRUE(bed_.Call(&Session::QuerySrq, query).ok());
  }
  // A QP on this engine takes it, with its receives.
  void ExpectToGoTo(uint32_t vector) {
    const auto qp = bed_.Call(&Session::CreateQp, QpOn(vector));
    ASSERT_TRUE(qp.ok()) << qp.status;
    EXPECT_EQ(bed_.device.last_srq->wr_ids.size(), 2u);
    EXPECT_EQ(bed_.engines[vector]->proxy().Stats().work_requests, 2u);
    const auto other = bed_.Call(&Session::CreateQp, QpOn((vector + 1) % kEngines));
    EXPECT_EQ(other.status.code(), StatusCode::kInvalidArgument) << "it stays there";
  }

  SessionBed bed_{LittleMemory(), kEngines};
  Handle pd_ = kNoHandle;
  Handle srq_ = kNoHandle;
  std::vector<Handle> cqs_;
  void* arena_ = nullptr;
  uint64_t arena_bytes_ = 0;
};

struct Refusal {
  const char* by;
  std::function<void(SessionBed&, v1::CreateQpRequest&)> prepare;
};

class SessionSrqMoveRefused : public SessionSrqMove, public ::testing::WithParamInterface<Refusal> {
 protected:
  // On engine 1.
  void TryAndFail() {
    v1::CreateQpRequest request = QpOn(1);
    GetParam().prepare(bed_, request);
    EXPECT_FALSE(bed_.Call(&Session::CreateQp, request).ok());
    bed_.device.qp_refusal = absl::OkStatus();
  }
};

TEST_P(SessionSrqMoveRefused, AQpOnTheSameEngineTakesIt) {
  TryAndFail();
  ExpectWholeAndFree();
  ExpectToGoTo(1);
}

TEST_P(SessionSrqMoveRefused, AQpOnAnotherEngineTakesIt) {
  TryAndFail();
  ExpectWholeAndFree();
  ExpectToGoTo(2);
}

TEST_P(SessionSrqMoveRefused, AQpOnItsFirstEngineTakesIt) {
  TryAndFail();
  ExpectToGoTo(0);
}

TEST_P(SessionSrqMoveRefused, ItCanBeDestroyed) {
  TryAndFail();
  v1::DestroySrqRequest destroy;
  destroy.set_srq(srq_);
  EXPECT_TRUE(bed_.Call(&Session::DestroySrq, destroy).ok());
  EXPECT_EQ(bed_.session->Counts().srqs(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    , SessionSrqMoveRefused,
    ::testing::Values(
        Refusal{"TheDevice", [](SessionBed& bed, v1::CreateQpRequest&) {
                  bed.device.qp_refusal = absl::ResourceExhaustedError("no QP left");
                }},
        Refusal{"RingMemory", [](SessionBed&, v1::CreateQpRequest& request) {
                  request.mutable_cap()->set_max_send_wr(32768);
                }},
        // When the engine has the QP already.
        Refusal{"TheCmId", [](SessionBed&, v1::CreateQpRequest& request) {
                  request.set_cm_id(12345);
                }}),
    [](const auto& refusal) { return refusal.param.by; });

TEST_F(SessionSrqMove, WhileItsFirstQpIsMadeItIsPromised) {
  const auto first = bed_.Start(&Session::CreateQp, QpOn(1));
  const auto elsewhere = bed_.Start(&Session::CreateQp, QpOn(2));
  const auto beside = bed_.Start(&Session::CreateQp, QpOn(1));
  EXPECT_EQ(elsewhere->status.code(), StatusCode::kInvalidArgument) << elsewhere->status;
  bed_.Settle();
  EXPECT_TRUE(first->ok()) << first->status;
  EXPECT_TRUE(beside->ok()) << beside->status;
  EXPECT_EQ(first->reply.srq_doorbell_index(), beside->reply.srq_doorbell_index());
  EXPECT_EQ(bed_.engines[1]->proxy().Stats().work_requests, 2u);
}

// Between any two steps of its first QP's making.
TEST_F(SessionSrqMove, TheEndMayComeWhileItMoves) {
  for (int turns = 0; turns < 6; ++turns) {
    SessionBed bed(LittleMemory(), kEngines);
    bed.Open();
    const Handle pd = bed.MakePd();
    const auto srq = bed.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd, 2));
    v1::CreateCqRequest on_one = SessionBed::CqRequest();
    on_one.set_comp_vector(1);
    v1::CreateQpRequest request =
        SessionBed::QpRequest(pd, bed.Call(&Session::CreateCq, on_one).reply.cq());
    request.set_srq(srq.reply.srq());
    const auto qp = bed.Start(&Session::CreateQp, request);
    for (int i = 0; i < turns; ++i) bed.Turn(1);
    bed.Close();
    EXPECT_EQ(qp->answers, 1) << turns;
  }
}

}  // namespace
}  // namespace rdmad::session
