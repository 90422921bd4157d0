// The life of a session: opening, ending at any moment, and what operators see.
#include "daemon/session/session.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

size_t OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// One of everything.
struct Everything {
  explicit Everything(SessionBed& bed)
      : pd(bed.MakePd()),
        pool(bed.MakePool()),
        region(bed.MakeRegion(pd, pool)),
        channel(bed.MakeChannel()),
        cq(bed.MakeCq(channel)),
        qp(bed.MakeQp(pd, cq)),
        event_channel(bed.MakeEventChannel()),
        id(bed.MakeId(event_channel)) {}
  Handle pd, pool, region, channel, cq, qp, event_channel, id;
};

TEST(Session, GivesTheFourDescriptorsOfTheAttachReply) {
  SessionBed bed;
  bed.Open();
  EXPECT_GE(bed.gift.control_segment, 0);
  EXPECT_EQ(bed.gift.control_segment_bytes % 4096, 0u);
  EXPECT_GE(bed.gift.engine_page, 0);
  EXPECT_TRUE(bed.gift.wake_pipe.valid());
  EXPECT_TRUE(bed.gift.async_channel.valid());
}

TEST(Session, RefusesCallsBeforeTheEngineKnowsIt) {
  SessionBed bed;
  ASSERT_TRUE(bed.session->Open([](const absl::Status&) {}).ok());
  EXPECT_EQ(bed.Start(&Session::AllocPd, v1::AllocPdRequest())->status.code(),
            absl::StatusCode::kUnavailable);
  bed.Settle();
}

TEST(Session, CountsWhatItHolds) {
  SessionBed bed;
  bed.Open();
  const Everything all(bed);
  const v1::ObjectCounts counts = bed.session->Counts();
  EXPECT_EQ(counts.pds(), 1u);
  EXPECT_EQ(counts.regions(), 1u);
  EXPECT_EQ(counts.pools(), 1u);
  EXPECT_EQ(counts.pool_bytes(), 4096u);
  EXPECT_EQ(counts.completion_channels(), 1u);
  EXPECT_EQ(counts.cqs(), 1u);
  EXPECT_EQ(counts.qps(), 1u);
  EXPECT_EQ(counts.event_channels(), 1u);
  EXPECT_EQ(counts.cm_ids(), 1u);
}

TEST(Session, EndGivesEverythingBack) {
  const size_t before = OpenDescriptors();
  {
    SessionBed bed;
    bed.Open();
    const Everything all(bed);
    bed.MakePool(8 << 20);  // given back elsewhere
    bed.Close();
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(Session, EndTellsPeersBeforeItTakesQueuesAway) {
  SessionBed bed;
  bed.Open();
  const Everything all(bed);
  uint32_t qps_when_id_went = 0;
  bed.manager.on_endpoint_gone = [&] { qps_when_id_went = bed.session->Counts().qps(); };
  bed.Close();
  EXPECT_EQ(qps_when_id_went, 1u);
  bed.manager.on_endpoint_gone = nullptr;
}

TEST(Session, SecondCloseIsIgnored) {
  SessionBed bed;
  bed.Open();
  int first = 0;
  int second = 0;
  bed.session->Close([&first] { ++first; });
  bed.session->Close([&second] { ++second; });
  bed.Settle();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  bed.session.reset();
}

TEST(Session, EndBeforeItWasOpen) {
  SessionBed bed;
  absl::Status status;
  ASSERT_TRUE(
      bed.session->Open([&status](absl::Status result) { status = std::move(result); }).ok());
  bed.Close();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST(Session, EndWhileThingsAreBeingMadeCancelsThem) {
  SessionBed bed;
  bed.Open();
  const Everything all(bed);
  v1::CreatePoolRequest large;
  large.set_size_bytes(8 << 20);
  const auto pd = bed.Start(&Session::AllocPd, v1::AllocPdRequest());
  const auto region =
      bed.Start(&Session::RegisterRegion, SessionBed::RegionRequest(all.pd, all.pool, 0, 1));
  const auto channel =
      bed.Start(&Session::CreateCompletionChannel, v1::CreateCompletionChannelRequest());
  const auto cq = bed.Start(&Session::CreateCq, SessionBed::CqRequest());
  const auto qp = bed.Start(&Session::CreateQp, SessionBed::QpRequest(all.pd, all.cq));
  const auto pool = bed.Start(&Session::CreatePool, large);
  bed.Close();
  for (const absl::Status& status :
       {pd->status, region->status, channel->status, cq->status, qp->status, pool->status}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
  EXPECT_EQ(
      pd->answers + region->answers + channel->answers + cq->answers + qp->answers + pool->answers,
      6);
}

TEST(Session, EndWhileThingsAreBeingDestroyedAnswersThem) {
  SessionBed bed;
  bed.Open();
  const Everything all(bed);
  v1::DestroyQpRequest destroy_qp;
  destroy_qp.set_qp(all.qp);
  v1::DeregisterRegionRequest deregister;
  deregister.set_region(all.region);
  const auto qp = bed.Start(&Session::DestroyQp, destroy_qp);
  const auto region = bed.Start(&Session::DeregisterRegion, deregister);
  bed.Close();
  EXPECT_TRUE(qp->ok());
  EXPECT_TRUE(region->ok());
}

TEST(Session, CallsAfterTheEndAreCancelled) {
  SessionBed bed;
  bed.Open();
  bed.session->Close(nullptr);
  EXPECT_EQ(bed.Start(&Session::AllocPd, v1::AllocPdRequest())->status.code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(bed.Start(&Session::CreateEventChannel, v1::CreateEventChannelRequest())->status.code(),
            absl::StatusCode::kCancelled);
  bed.Settle();
  bed.session.reset();
}

TEST(Session, CorruptSharedMemoryEndsIt) {
  SessionBed bed;
  bed.Open();
  bed.router.OnSessionCorrupt(1, "doorbell");  // the session's token is the first one drawn
  ASSERT_EQ(bed.host.end_reasons.size(), 1u);
  EXPECT_EQ(bed.host.end_reasons[0], "corrupt shared memory: doorbell");
}

TEST(Session, AsyncEventOfAQpReachesTheClientUnderItsHandle) {
  SessionBed bed;
  bed.Open();
  const Everything all(bed);
  const uint64_t qp_token = 3;  // after the session's and the CQ's
  bed.router.OnQpAsyncEvent({device::AsyncEventType::kQpFatal, qp_token, 0});
  shm::AsyncEvent event{};
  ASSERT_EQ(read(bed.gift.async_channel.get(), &event, sizeof(event)),
            static_cast<ssize_t>(sizeof(event)));
  EXPECT_EQ(event.type, static_cast<uint32_t>(device::AsyncEventType::kQpFatal));
  EXPECT_EQ(event.handle, all.qp);
}

TEST(Session, AsyncEventOfADestroyedQpReachesNobody) {
  SessionBed bed;
  bed.Open();
  const Everything all(bed);
  v1::DestroyQpRequest request;
  request.set_qp(all.qp);
  ASSERT_TRUE(bed.Call(&Session::DestroyQp, request).ok());
  bed.MakeQp(all.pd, all.cq);  // takes the slot
  bed.router.OnQpAsyncEvent({device::AsyncEventType::kQpFatal, 3, 0});
  fcntl(bed.gift.async_channel.get(), F_SETFL, O_NONBLOCK);
  shm::AsyncEvent event{};
  EXPECT_EQ(read(bed.gift.async_channel.get(), &event, sizeof(event)), -1);
}

TEST(Session, ReportsItsLimits) {
  SessionLimits limits;
  limits.max_qps = 77;
  SessionBed bed(limits);
  bed.Open();
  const auto outcome = bed.Call(&Session::GetSession, v1::GetSessionRequest());
  EXPECT_EQ(outcome.reply.session_id(), 1u);
  EXPECT_EQ(outcome.reply.name(), "test");
  EXPECT_EQ(outcome.reply.limits().max_qps(), 77u);
}

TEST(Session, SaysHowManyQpsEachDeviceHas) {
  SessionBed bed;
  bed.Open();
  const auto qps = [&bed] {
    std::vector<uint32_t> counts;
    bed.session->AddQpsByDevice(&counts);
    return counts;
  };
  EXPECT_TRUE(qps().empty());
  const Handle pd = bed.MakePd();
  const Handle cq = bed.MakeCq();
  const Handle qp = bed.MakeQp(pd, cq);
  bed.MakeUdQp(pd, cq);
  bed.device.qp_refusal = absl::ResourceExhaustedError("no QP left");
  EXPECT_FALSE(bed.Call(&Session::CreateQp, SessionBed::QpRequest(pd, cq)).ok());
  EXPECT_EQ(qps(), std::vector<uint32_t>{2});
  v1::DestroyQpRequest destroy;
  destroy.set_qp(qp);
  EXPECT_TRUE(bed.Call(&Session::DestroyQp, destroy).ok());
  EXPECT_EQ(qps(), std::vector<uint32_t>{1});
}

}  // namespace
}  // namespace rdmad::session
