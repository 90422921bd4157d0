// Shared receive queues at an engine: their WRs, their limit and their events.
#include "daemon/engine/srq_port.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

class SrqPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SrqPortInit init;
    init.session = session_.port.get();
    init.srq = &srq_;
    init.ring = {memory_.data(), 16};
    init.doorbell_index = 3;
    init.owner_token = 9;
    port_ = bed_.proxy().CreateSrqPort(init);
    bed_.Activate(*port_);
    bed_.Settle();
  }
  void TearDown() override {
    if (port_ != nullptr) bed_.Deactivate(*port_);
  }

  EngineBed bed_;
  TestSession session_{bed_, 42};
  testing::FakeSrq srq_;
  RingMemory memory_{shm::WorkQueueBytes(16)};
  shm::WorkQueueHeader* const header_ = reinterpret_cast<shm::WorkQueueHeader*>(memory_.data());
  sdk::WorkQueueWriter writer_{header_, 16, {16, 4, 0}};
  std::unique_ptr<SrqPort> port_;
};

TEST_F(SrqPortTest, ReceivesReachTheDevice) {
  for (uint64_t id = 0; id < 16; ++id) ASSERT_EQ(writer_.PostRecv(id, {}), 0);
  writer_.Publish();
  session_.ringer().Ring(3);
  bed_.Settle();
  EXPECT_EQ(srq_.wr_ids.size(), 16u);
  EXPECT_EQ(session_.port->Counters().recv_wrs, 16u);
}

TEST_F(SrqPortTest, NonsenseCostsTheSessionOnce) {
  header_->tail.store(17);
  for (int i = 0; i < 3; ++i) {
    session_.ringer().Ring(3);
    bed_.Settle();
  }
  ASSERT_EQ(bed_.sink.corrupt.size(), 1u);
  EXPECT_EQ(bed_.sink.corrupt[0].first, 42u);
  EXPECT_NE(bed_.sink.corrupt[0].second.find("srq"), std::string::npos);
}

TEST_F(SrqPortTest, MoreThanTheDeviceTakesCostsTheSession) {
  srq_.result = device::PostResult::kQueueFull;
  ASSERT_EQ(writer_.PostRecv(1, {}), 0);
  writer_.Publish();
  session_.ringer().Ring(3);
  bed_.Settle();
  EXPECT_EQ(bed_.sink.corrupt.size(), 1u);
}

TEST_F(SrqPortTest, ADeviceThatFindsNoneGetsThemBeforeTheDoorbell) {
  for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(writer_.PostRecv(id, {}), 0);
  writer_.Publish();
  ASSERT_NE(srq_.source, nullptr);
  srq_.source->PostReceives();
  EXPECT_EQ(srq_.wr_ids.size(), 3u);
  srq_.source->PostReceives();
  session_.ringer().Ring(3);
  bed_.Settle();
  EXPECT_EQ(srq_.wr_ids.size(), 3u) << "each once";
  EXPECT_EQ(session_.port->Counters().recv_wrs, 3u);
  bed_.Deactivate(*port_);
  port_.reset();
  bed_.Settle();
  EXPECT_EQ(srq_.source, nullptr);
}

TEST_F(SrqPortTest, WhatIsWrongWaitsForItsTurn) {
  srq_.result = device::PostResult::kQueueFull;
  ASSERT_EQ(writer_.PostRecv(1, {}), 0);
  writer_.Publish();
  srq_.source->PostReceives();
  EXPECT_TRUE(bed_.sink.corrupt.empty());
  bed_.Settle();
  EXPECT_EQ(bed_.sink.corrupt.size(), 1u) << "and no doorbell is needed for that";
}

TEST_F(SrqPortTest, LimitGoesToTheDeviceAndBack) {
  std::optional<device::QpResult> set;
  std::optional<uint32_t> armed;
  bed_.proxy().SetSrqLimit(srq_, 5, [&](device::QpResult result) { set = result; });
  bed_.proxy().QuerySrqLimit(srq_, [&](uint32_t limit) { armed = limit; });
  EXPECT_FALSE(set.has_value());
  bed_.Settle();
  EXPECT_EQ(set, device::QpResult::kOk);
  EXPECT_EQ(armed, 5u);
}

TEST_F(SrqPortTest, RefusedLimitIsTold) {
  srq_.limit_result = device::QpResult::kBadValue;
  std::optional<device::QpResult> set;
  bed_.proxy().SetSrqLimit(srq_, 5, [&](device::QpResult result) { set = result; });
  bed_.Settle();
  EXPECT_EQ(set, device::QpResult::kBadValue);
}

TEST_F(SrqPortTest, SameEventTwiceBeforeControlLooksIsOneEvent) {
  for (int i = 0; i < 1000; ++i) {
    bed_.engine().async_sink()->OnAsyncEvent({device::AsyncEventType::kSrqLimitReached, 9, 0});
  }
  bed_.Settle();
  ASSERT_EQ(bed_.sink.async.size(), 1u);
  EXPECT_EQ(bed_.sink.async[0].owner_token, 9u);
  EXPECT_EQ(bed_.sink.async[0].type, device::AsyncEventType::kSrqLimitReached);
  EXPECT_EQ(bed_.proxy().Stats().events_dropped, 0u);
}

TEST_F(SrqPortTest, NothingIsSaidOfItAfterItsEnd) {
  bed_.engine().async_sink()->OnAsyncEvent({device::AsyncEventType::kSrqErr, 9, 0});
  bed_.Deactivate(*port_);
  port_.reset();
  bed_.Settle();
  EXPECT_TRUE(bed_.sink.async.empty());
}

}  // namespace
}  // namespace rdmad::engine
