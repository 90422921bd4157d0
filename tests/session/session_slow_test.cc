// What a device does slowly (pinning, asking for a neighbour) happens elsewhere: nobody waits for it
// but who asked, and whatever ends meanwhile waits for it.
#include <gtest/gtest.h>

#include <memory>

#include "absl/status/status.h"
#include "daemon/session/session.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

class SessionSlow : public ::testing::Test {
 protected:
  SessionSlow() {
    bed_.Open();
    pd_ = bed_.MakePd();
    pool_ = bed_.MakePool();
    bed_.device.slowness.slow = true;
  }
  auto StartRegion() {
    return bed_.Start(&Session::RegisterRegion, bed_.RegionRequest(pd_, pool_, 0, 4096));
  }
  auto StartAh() { return bed_.Start(&Session::CreateAh, bed_.AhRequest(pd_)); }
  // Of the slow work, what has begun.
  [[nodiscard]] size_t begun() const { return bed_.host.slow.size(); }
  [[nodiscard]] const testing::FakeSlowness& slowness() const { return bed_.device.slowness; }

  SessionBed bed_;
  Handle pd_ = kNoHandle;
  Handle pool_ = kNoHandle;
};

TEST_F(SessionSlow, ARegionAndAHandleAreMadeElsewhereAndThenAnswered) {
  const auto region = StartRegion();
  const auto ah = StartAh();
  EXPECT_EQ(slowness().prepared, 0) << "not on this thread";
  bed_.Settle();
  EXPECT_TRUE(region->ok()) << region->status;
  EXPECT_NE(region->reply.rkey(), 0u);
  EXPECT_TRUE(ah->ok()) << ah->status;
  EXPECT_EQ(slowness().prepared, 2);
}

TEST_F(SessionSlow, OtherCallsAreAnsweredMeanwhileAndOtherSessionsToo) {
  const auto region = StartRegion();
  SessionBed other_bed;
  Session other(bed_.environment, {2, "other", 2, 3, 4}, {}, &other_bed.sender);
  absl::Status opened = absl::UnknownError("not answered");
  ASSERT_TRUE(other.Open([&](absl::Status status) { opened = status; }).ok());
  const auto pd = bed_.Start(&Session::AllocPd, v1::AllocPdRequest());
  bed_.SettleButSlow();
  EXPECT_TRUE(opened.ok()) << opened;
  EXPECT_TRUE(pd->ok());
  v1::AllocPdReply reply;
  absl::Status made = absl::UnknownError("not answered");
  other.AllocPd({}, &reply, [&](absl::Status status) { made = status; });
  bed_.SettleButSlow();
  EXPECT_TRUE(made.ok()) << made;
  bool closed = false;
  other.Close([&] { closed = true; });
  bed_.SettleButSlow();
  EXPECT_TRUE(closed) << "it has nothing slow of its own";
  EXPECT_EQ(region->answers, 0);
  bed_.Settle();
  EXPECT_TRUE(region->ok());
}

TEST_F(SessionSlow, OneSessionHasOneAtATimeElsewhere) {
  const auto first = StartRegion();
  const auto second = StartAh();
  const auto third = StartAh();
  EXPECT_EQ(begun(), 1u);
  bed_.Settle();
  EXPECT_TRUE(first->ok() && second->ok() && third->ok());
}

TEST_F(SessionSlow, WhatFailsIsAnsweredAndGone) {
  bed_.device.slowness.result = absl::UnavailableError("the device was removed");
  const auto region = StartRegion();
  const auto ah = StartAh();
  bed_.Settle();
  EXPECT_TRUE(absl::IsUnavailable(region->status)) << region->status;
  EXPECT_TRUE(absl::IsUnavailable(ah->status)) << ah->status;
  EXPECT_EQ(slowness().objects, 0);
  v1::DeallocPdRequest request;
  request.set_pd(pd_);
  EXPECT_TRUE(bed_.Call(&Session::DeallocPd, request).ok()) << "nobody uses it";
}

TEST_F(SessionSlow, ItsPdAndPoolStayWhileARegionIsMade) {
  const auto region = StartRegion();
  v1::DeallocPdRequest dealloc;
  dealloc.set_pd(pd_);
  const auto refused = bed_.Start(&Session::DeallocPd, dealloc);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused->status)) << refused->status;
  v1::DestroyPoolRequest destroy;
  destroy.set_pool(pool_);
  destroy.set_force(true);
  const auto destroyed = bed_.Start(&Session::DestroyPool, destroy);
  bed_.SettleButSlow();
  EXPECT_EQ(destroyed->answers, 0) << "its pages are being pinned";
  bed_.Settle();
  EXPECT_TRUE(absl::IsCancelled(region->status)) << region->status;
  EXPECT_TRUE(destroyed->ok());
  EXPECT_EQ(slowness().released, 1);
  EXPECT_EQ(slowness().objects, 0);
}

TEST_F(SessionSlow, DeregisteringIsDoneElsewhereToo) {
  const auto region = StartRegion();
  bed_.Settle();
  v1::DeregisterRegionRequest request;
  request.set_region(region->reply.region());
  const auto gone = bed_.Start(&Session::DeregisterRegion, request);
  bed_.SettleButSlow();
  EXPECT_EQ(gone->answers, 0);
  EXPECT_EQ(slowness().released, 0) << "not on this thread";
  bed_.Settle();
  EXPECT_TRUE(gone->ok());
  EXPECT_EQ(slowness().released, 1);
}

TEST_F(SessionSlow, ASessionThatEndsWaitsForWhatIsUnderWayAndLeavesOutTheRest) {
  const auto region = StartRegion();
  const auto ah = StartAh();
  bool closed = false;
  bed_.session->Close([&] { closed = true; });
  bed_.SettleButSlow();
  EXPECT_FALSE(closed) << "the worker still has the region, its PD and its context";
  EXPECT_EQ(slowness().objects, 2);
  bed_.Settle();
  EXPECT_TRUE(closed);
  EXPECT_TRUE(absl::IsCancelled(region->status)) << region->status;
  EXPECT_TRUE(absl::IsCancelled(ah->status)) << ah->status;
  EXPECT_EQ(slowness().prepared, 1) << "the handle's turn had not come";
  EXPECT_EQ(slowness().objects, 0);
  bed_.session.reset();
}

// The end of everything else does not wait.
TEST_F(SessionSlow, ASessionThatEndsTakesItsQpsDownAtOnce) {
  std::vector<std::string> retired;
  bed_.path.retired = &retired;
  bed_.MakeQp(pd_, bed_.MakeCq());
  const auto region = StartRegion();
  bool closed = false;
  bed_.session->Close([&] { closed = true; });
  bed_.SettleButSlow();
  EXPECT_EQ(retired, std::vector<std::string>{"qp"});
  EXPECT_FALSE(closed);
  bed_.Settle();
  EXPECT_TRUE(closed);
  bed_.session.reset();
}

}  // namespace
}  // namespace rdmad::session
