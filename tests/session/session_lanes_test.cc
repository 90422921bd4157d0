// A session on several engines: where its objects live, what is for all of them, and how that goes.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/session/session.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/event.h"
#include "proto/shm/work_queue.h"
#include "tests/session/session_bed.h"

namespace rdmad::session {
namespace {

using absl::StatusCode;

constexpr uint32_t kEngines = 3;

v1::CreateCqRequest CqOn(uint32_t vector, Handle channel = kNoHandle) {
  v1::CreateCqRequest request = SessionBed::CqRequest(16, channel);
  request.set_comp_vector(vector);
  return request;
}

class SessionLanes : public ::testing::Test {
 protected:
  SessionLanes() { bed_.Open(); }

  Handle MakeCq(uint32_t vector, Handle channel = kNoHandle) {
    const auto made = bed_.Call(&Session::CreateCq, CqOn(vector, channel));
    EXPECT_TRUE(made.ok()) << made.status;
    return made.reply.cq();
  }
  // The client's end of a descriptor that was sent.
  UniqueFd Take(uint64_t tag, v1::DescriptorKind kind) {
    const auto found = bed_.sender.sent.find(tag);
    if (found == bed_.sender.sent.end() || found->second.kind != kind) return UniqueFd();
    return std::move(found->second.fd);
  }
  // Maps the control segment that a lane brought.
  shm::ControlSegment* MapControl(const v1::EngineLane& lane) {
    const UniqueFd fd = Take(lane.control_segment_tag(), v1::DESCRIPTOR_KIND_CONTROL_SEGMENT);
    if (!fd.valid()) return nullptr;
    void* const data = ::mmap(nullptr, lane.control_segment_bytes(), PROT_READ | PROT_WRITE,
                              MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return nullptr;
    mapped_.push_back({data, lane.control_segment_bytes()});
    return static_cast<shm::ControlSegment*>(data);
  }
  // Maps the arena that came with the first queue in it.
  std::byte* MapArena(const v1::QueueLocation& first) {
    const UniqueFd fd = Take(first.descriptor_tag(), v1::DESCRIPTOR_KIND_ARENA);
    if (!fd.valid()) return nullptr;
    void* const data =
        ::mmap(nullptr, first.arena_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return nullptr;
    mapped_.push_back({data, first.arena_bytes()});
    return static_cast<std::byte*>(data);
  }
  static shm::WorkQueueHeader* RingAt(std::byte* arena, const v1::QueueLocation& location) {
    return reinterpret_cast<shm::WorkQueueHeader*>(arena + location.offset_bytes());
  }
  ~SessionLanes() override {
    for (const auto& [data, bytes] : mapped_) ::munmap(data, bytes);
  }
  uint64_t WorkRequests(uint32_t engine) {
    return bed_.engines[engine]->proxy().Stats().work_requests;
  }

  SessionBed bed_{SessionLimits{}, kEngines};
  std::vector<std::pair<void*, size_t>> mapped_;
};

TEST_F(SessionLanes, DevicesSayHowManyVectorsThereAre) {
  const auto devices = bed_.Call(&Session::QueryDevices, v1::QueryDevicesRequest());
  EXPECT_EQ(devices.reply.devices(0).num_comp_vectors(), kEngines);
}

TEST_F(SessionLanes, AVectorWithoutAnEngineIsRefused) {
  const auto cq = bed_.Call(&Session::CreateCq, CqOn(kEngines));
  EXPECT_EQ(cq.status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(cq.status, "comp_vector=3: allowed are 0 to 2")) << cq.status;
  v1::CreateSrqRequest request = SessionBed::SrqRequest(bed_.MakePd());
  request.set_comp_vector(UINT32_MAX);
  const auto srq = bed_.Call(&Session::CreateSrq, request);
  EXPECT_EQ(srq.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bed_.session->engine_indices(), std::vector<uint32_t>{0});
}

TEST_F(SessionLanes, TheFirstQueueOfAVectorBringsItsDescriptors) {
  EXPECT_FALSE(bed_.Call(&Session::CreateCq, CqOn(0)).reply.has_lane()) << "came with attaching";
  const auto first = bed_.Call(&Session::CreateCq, CqOn(2));
  ASSERT_TRUE(first.reply.has_lane());
  const v1::EngineLane& lane = first.reply.lane();
  EXPECT_EQ(lane.comp_vector(), 2u);
  EXPECT_EQ(lane.engine_index(), 2u);
  EXPECT_TRUE(Take(lane.control_segment_tag(), v1::DESCRIPTOR_KIND_CONTROL_SEGMENT).valid());
  EXPECT_TRUE(Take(lane.engine_page_tag(), v1::DESCRIPTOR_KIND_ENGINE_PAGE).valid());
  EXPECT_TRUE(Take(lane.wake_pipe_tag(), v1::DESCRIPTOR_KIND_WAKE_PIPE).valid());
  EXPECT_FALSE(bed_.Call(&Session::CreateCq, CqOn(2)).reply.has_lane());
  EXPECT_EQ(bed_.session->engine_indices(), (std::vector<uint32_t>{0, 2}));
}

TEST_F(SessionLanes, DescriptorsThatCouldNotBeSentComeWithTheNextQueue) {
  bed_.sender.result = absl::ResourceExhaustedError("full");
  EXPECT_EQ(bed_.Call(&Session::CreateCq, CqOn(1)).status.code(), StatusCode::kResourceExhausted);
  bed_.sender.result = absl::OkStatus();
  EXPECT_TRUE(bed_.Call(&Session::CreateCq, CqOn(1)).reply.has_lane());
}

TEST_F(SessionLanes, AQpIsServedByTheEngineOfItsCqs) {
  const Handle pd = bed_.MakePd();
  const auto cq = bed_.Call(&Session::CreateCq, CqOn(1));
  shm::ControlSegment* const control = MapControl(cq.reply.lane());
  ASSERT_NE(control, nullptr);
  const auto qp = bed_.Call(&Session::CreateQp, SessionBed::QpRequest(pd, cq.reply.cq()));
  ASSERT_TRUE(qp.ok()) << qp.status;
  EXPECT_EQ(qp.reply.doorbell_index(), 0u) << "each lane counts by itself";
  v1::ModifyQpRequest modify;
  modify.set_qp(qp.reply.qp());
  modify.set_attr_mask(device::kQpAttrState);
  modify.mutable_attr()->set_qp_state(3);
  ASSERT_TRUE(bed_.Call(&Session::ModifyQp, modify).ok());

  std::byte* const arena = MapArena(cq.reply.ring());
  ASSERT_NE(arena, nullptr);
  shm::WorkQueueHeader* const ring = RingAt(arena, qp.reply.send_ring());
  ring->tail.store(1, std::memory_order_release);  // a send of nothing
  shm::RingDoorbell(*control, qp.reply.doorbell_index());
  bed_.Settle();
  EXPECT_EQ(WorkRequests(0), 0u);
  EXPECT_EQ(WorkRequests(1), 1u);
  EXPECT_EQ(bed_.session->Counters().send_wrs, 1u) << "counted with the session's others";
}

TEST_F(SessionLanes, AQpIsOfOneVector) {
  const Handle pd = bed_.MakePd();
  v1::CreateQpRequest request = SessionBed::QpRequest(pd, MakeCq(0));
  request.set_recv_cq(MakeCq(1));
  const auto mixed = bed_.Call(&Session::CreateQp, request);
  EXPECT_EQ(mixed.status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(mixed.status, "the send CQ is of completion vector 0, the receive CQ of 1"))
      << mixed.status;
  EXPECT_EQ(bed_.session->Counts().qps(), 0u);
}

// ibv_create_srq names no vector.
TEST_F(SessionLanes, AnSrqGoesToTheVectorOfItsFirstQpAndStays) {
  const Handle pd = bed_.MakePd();
  const auto srq = bed_.Call(&Session::CreateSrq, SessionBed::SrqRequest(pd, 2));
  ASSERT_TRUE(srq.ok()) << srq.status;
  std::byte* const arena = MapArena(srq.reply.ring());
  ASSERT_NE(arena, nullptr);
  shm::WorkQueueHeader* const ring = RingAt(arena, srq.reply.ring());
  ring->tail.store(3, std::memory_order_release);  // receives of nothing
  bed_.Settle();
  EXPECT_TRUE(bed_.device.last_srq->wr_ids.empty()) << "they wait";
  const device::Srq* const before = bed_.device.last_srq;

  const auto cq = bed_.Call(&Session::CreateCq, CqOn(1));
  shm::ControlSegment* const control = MapControl(cq.reply.lane());
  ASSERT_NE(control, nullptr);
  v1::CreateQpRequest request = SessionBed::QpRequest(pd, cq.reply.cq());
  request.set_srq(srq.reply.srq());
  const auto qp = bed_.Call(&Session::CreateQp, request);
  ASSERT_TRUE(qp.ok()) << qp.status;
  EXPECT_NE(bed_.device.last_srq, before) << "a device's SRQ is of one engine";
  EXPECT_EQ(bed_.device.last_srq->wr_ids.size(), 3u);
  EXPECT_EQ(bed_.device.last_srq->limit(), 2u);
  EXPECT_EQ(WorkRequests(1), 3u);
  EXPECT_NE(qp.reply.srq_doorbell_index(), qp.reply.doorbell_index());
  ring->tail.store(4, std::memory_order_release);
  shm::RingDoorbell(*control, qp.reply.srq_doorbell_index());
  bed_.Settle();
  EXPECT_EQ(bed_.device.last_srq->wr_ids.size(), 4u);
  EXPECT_EQ(WorkRequests(0), 0u);

  EXPECT_EQ(bed_.Call(&Session::CreateQp, request).reply.srq_doorbell_index(),
            qp.reply.srq_doorbell_index());
  const Handle elsewhere = MakeCq(0);
  request.set_send_cq(elsewhere);
  request.set_recv_cq(elsewhere);
  const auto refused = bed_.Call(&Session::CreateQp, request);
  EXPECT_EQ(refused.status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Mentions(refused.status, "the SRQ of 1")) << refused.status;
}

TEST_F(SessionLanes, AnSrqWithoutAPlaceGoesWithAQpThatIsNotMade) {
  const Handle pd = bed_.MakePd();
  v1::CreateSrqRequest make = SessionBed::SrqRequest(pd);
  make.set_comp_vector(1);
  const auto srq = bed_.Call(&Session::CreateSrq, make);
  EXPECT_TRUE(srq.reply.has_lane()) << "an SRQ can be the first queue there";
  v1::CreateQpRequest request = SessionBed::QpRequest(pd, MakeCq(2));
  request.set_srq(srq.reply.srq());
  request.mutable_cap()->set_max_send_wr(UINT32_MAX);
  EXPECT_FALSE(bed_.Call(&Session::CreateQp, request).ok());
  request.mutable_cap()->set_max_send_wr(8);
  for (const uint32_t vector : {0u, 1u, 2u}) {
    const Handle cq = MakeCq(vector);
    request.set_send_cq(cq);
    request.set_recv_cq(cq);
    EXPECT_EQ(bed_.Call(&Session::CreateQp, request).ok(), vector == 0) << vector;
  }
}

TEST_F(SessionLanes, RegionsAndWindowsAreKnownToEveryLane) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  const Handle early = bed_.MakeRegion(pd, pool);
  ASSERT_TRUE(bed_.Call(&Session::AllocMw, SessionBed::MwRequest(pd)).ok());
  EXPECT_EQ(bed_.device.parts, 0) << "there is one lane";
  MakeCq(1);
  EXPECT_EQ(bed_.device.parts, 2) << "what is there when a lane opens";
  const Handle late = bed_.MakeRegion(pd, pool);
  EXPECT_EQ(bed_.device.parts, 3) << "what comes later";
  MakeCq(2);
  EXPECT_EQ(bed_.device.parts, 6);
  for (const Handle region : {early, late}) {
    v1::DeregisterRegionRequest request;
    request.set_region(region);
    EXPECT_TRUE(bed_.Call(&Session::DeregisterRegion, request).ok());
  }
  EXPECT_EQ(bed_.device.parts, 2);
}

TEST_F(SessionLanes, RegisteringAndDeregisteringWaitForAllLanes) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  MakeCq(1);
  const auto made =
      bed_.Start(&Session::RegisterRegion, SessionBed::RegionRequest(pd, pool, 0, 4096));
  bed_.Turn(0);
  EXPECT_EQ(made->answers, 0) << "engine 1 does not know it yet";
  bed_.Turn(1);
  ASSERT_TRUE(made->ok()) << made->status;
  v1::DeregisterRegionRequest request;
  request.set_region(made->reply.region());
  const auto gone = bed_.Start(&Session::DeregisterRegion, request);
  bed_.Turn(1);
  EXPECT_EQ(gone->answers, 0) << "engine 0 may still use it";
  bed_.Turn(0);
  EXPECT_TRUE(gone->ok()) << gone->status;
}

TEST_F(SessionLanes, ARegionThatIsBeingPreparedJoinsALaneThatOpensMeanwhile) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  bed_.device.slowness.slow = true;
  const auto made =
      bed_.Start(&Session::RegisterRegion, SessionBed::RegionRequest(pd, pool, 0, 4096));
  const auto cq = bed_.Start(&Session::CreateCq, CqOn(1));
  bed_.SettleButSlow();
  EXPECT_TRUE(cq->ok()) << cq->status;
  EXPECT_EQ(bed_.device.parts, 0);
  bed_.Settle();
  EXPECT_TRUE(made->ok()) << made->status;
  EXPECT_EQ(bed_.device.parts, 1);
}

TEST_F(SessionLanes, AnAddressHandleServesQpsOfEveryLane) {
  const Handle pd = bed_.MakePd();
  ASSERT_TRUE(bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).ok());
  MakeCq(1);
  const auto late = bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd));
  ASSERT_TRUE(late.ok()) << late.status;
  v1::DestroyAhRequest request;
  request.set_ah(late.reply.ah());
  EXPECT_TRUE(bed_.Call(&Session::DestroyAh, request).ok());
  // The same number again, on both engines.
  EXPECT_EQ(bed_.Call(&Session::CreateAh, SessionBed::AhRequest(pd)).reply.slot_handle(),
            late.reply.slot_handle());
}

TEST_F(SessionLanes, AChannelServesCqsOfEveryLane) {
  const Handle channel = bed_.MakeChannel();
  for (uint32_t vector = 0; vector < kEngines; ++vector) {
    MakeCq(vector, channel);
    MakeCq(vector, channel);
  }
  v1::DestroyCompletionChannelRequest request;
  request.set_channel(channel);
  EXPECT_EQ(bed_.Call(&Session::DestroyCompletionChannel, request).status.code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(SessionLanes, StrayDoorbellsOfALaneAreNobodys) {
  const auto cq = bed_.Call(&Session::CreateCq, CqOn(1));
  shm::ControlSegment* const control = MapControl(cq.reply.lane());
  ASSERT_NE(control, nullptr);
  const Handle pd = bed_.MakePd();
  bed_.MakeQp(pd, MakeCq(0));
  ASSERT_NE(bed_.MakeQp(pd, cq.reply.cq()), kNoHandle);
  for (uint32_t index = 0; index < shm::kMaxDoorbells; ++index) {
    shm::RingDoorbell(*control, index);
  }
  bed_.Settle();
  EXPECT_EQ(bed_.session->Counters().doorbells, 1u) << "that of the QP which is there";
  EXPECT_TRUE(bed_.host.end_reasons.empty());
}

// Whatever the engines have not done yet.
TEST_F(SessionLanes, TheEndLeavesNothingOnAnyEngine) {
  const Handle pd = bed_.MakePd();
  const Handle pool = bed_.MakePool();
  bed_.MakeRegion(pd, pool);
  const Handle channel = bed_.MakeChannel();
  for (uint32_t vector = 1; vector < kEngines; ++vector) {
    const Handle cq = MakeCq(vector, channel);
    bed_.MakeQp(pd, cq);
    bed_.MakeUdQp(pd, cq);
    v1::CreateSrqRequest srq = SessionBed::SrqRequest(pd);
    srq.set_comp_vector(vector);
    EXPECT_TRUE(bed_.Call(&Session::CreateSrq, srq).ok());
    const auto attached =
        bed_.Call(&Session::AttachMulticast, SessionBed::AttachRequest(bed_.MakeUdQp(pd, cq)));
    EXPECT_TRUE(attached.ok()) << attached.status;
  }
  const auto region =
      bed_.Start(&Session::RegisterRegion, SessionBed::RegionRequest(pd, pool, 0, 4096));
  const auto ah = bed_.Start(&Session::CreateAh, SessionBed::AhRequest(pd));
  bed_.Turn(2);
  bed_.Close();
  EXPECT_EQ(region->status.code(), StatusCode::kCancelled);
  EXPECT_EQ(ah->status.code(), StatusCode::kCancelled);
}

TEST_F(SessionLanes, TheEndDoesNotWaitForALaneToHaveOpened) {
  const auto cq = bed_.Start(&Session::CreateCq, CqOn(1));
  bed_.Close();
  EXPECT_EQ(cq->status.code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace rdmad::session
