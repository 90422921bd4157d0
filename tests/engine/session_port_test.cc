#include "daemon/engine/session_port.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

// A source that counts its turns.
class CountingSource final : public WorkSource {
 public:
  DrainResult Drain(uint32_t, device::TimeNs) noexcept override {
    ++turns;
    return {};
  }
  int turns = 0;
};

class SessionPortTest : public ::testing::Test {
 protected:
  ShmSessionPort& port() { return static_cast<ShmSessionPort&>(*session_.port); }
  void Insert(uint32_t index, WorkSource& source) {
    port().doorbells().Reserve(index);
    port().doorbells().Insert(index, source);
  }

  EngineBed bed_;
  TestSession session_{bed_, 5};
};

TEST_F(SessionPortTest, EachRungQueueHasOneTurn) {
  // The corners of words and of the summary.
  const uint32_t indices[] = {0, 1, 63, 64, 4095, 4096, 8191, shm::kMaxDoorbells - 1};
  CountingSource sources[std::size(indices)];
  for (size_t i = 0; i < std::size(indices); ++i) Insert(indices[i], sources[i]);
  for (const uint32_t index : indices) {
    EXPECT_TRUE(shm::RingDoorbell(*session_.control, index));
    EXPECT_FALSE(shm::RingDoorbell(*session_.control, index));
  }
  bed_.Turn();
  for (size_t i = 0; i < std::size(indices); ++i) EXPECT_EQ(sources[i].turns, 1) << indices[i];
  bed_.Turn();
  for (size_t i = 0; i < std::size(indices); ++i) EXPECT_EQ(sources[i].turns, 1) << indices[i];
  EXPECT_EQ(session_.port->Counters().doorbells, std::size(indices));
}

TEST_F(SessionPortTest, BellsOfQueuesThatDoNotExistAreIgnored) {
  CountingSource source;
  Insert(10, source);
  for (auto& word : session_.control->words) word.store(~uint64_t{0});
  for (auto& summary : session_.control->summary) summary.store(~uint64_t{0});
  bed_.Settle();
  EXPECT_EQ(source.turns, 1);
  EXPECT_EQ(session_.port->Counters().doorbells, 1u);
}

TEST_F(SessionPortTest, ARemovedQueueHasNoTurn) {
  CountingSource source;
  Insert(10, source);
  port().doorbells().Remove(10);
  shm::RingDoorbell(*session_.control, 10);
  bed_.Settle();
  EXPECT_EQ(source.turns, 0);
}

TEST_F(SessionPortTest, AnyDoorbellSeesWhatCollectWouldFind) {
  CountingSource source;
  Insert(5000, source);
  EXPECT_FALSE(port().AnyDoorbell());
  shm::RingDoorbell(*session_.control, 5000);
  EXPECT_TRUE(port().AnyDoorbell());
  bed_.Settle();
  EXPECT_FALSE(port().AnyDoorbell());
}

TEST_F(SessionPortTest, CorruptIsReportedOnce) {
  port().MarkCorrupt("first");
  port().MarkCorrupt("second");
  bed_.Settle();
  ASSERT_EQ(bed_.sink.corrupt.size(), 1u);
  EXPECT_EQ(bed_.sink.corrupt[0], (std::pair<uint64_t, std::string>{5, "first"}));
}

TEST_F(SessionPortTest, AByteInTheWakePipeEndsTheWaitAndIsTaken) {
  ASSERT_EQ(write(session_.wake.write_end.get(), "xyz", 3), 3);
  bed_.engine().WaitForWork(0);
  const uint64_t wakeups = bed_.proxy().Stats().wakeups;
  // Nothing is left that would end this one early: it takes its time out.
  bed_.engine().WaitForWork(0, 1'000'000);
  EXPECT_EQ(bed_.proxy().Stats().wakeups, wakeups + 1);
  char byte;
  EXPECT_EQ(read(session_.wake.write_end.get(), &byte, 1), -1);
}

TEST_F(SessionPortTest, AClosedWakePipeDoesNotKeepTheEngineAwake) {
  session_.wake.write_end.Reset();
  bed_.engine().WaitForWork(0);  // notices and gives the pipe up
  timespec before{};
  timespec after{};
  clock_gettime(CLOCK_MONOTONIC, &before);
  bed_.engine().WaitForWork(0, 2'000'000);
  clock_gettime(CLOCK_MONOTONIC, &after);
  EXPECT_GE((after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec,
            2'000'000);
}

}  // namespace
}  // namespace rdmad::engine
