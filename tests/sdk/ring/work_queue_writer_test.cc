#include "client/sdk/ring/work_queue_writer.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

namespace rdmad::sdk {
namespace {

constexpr uint32_t kSlots = 32;

class WorkQueueWriterTest : public ::testing::Test {
 protected:
  struct Ring {
    shm::WorkQueueHeader header{};
    shm::WorkSlot slots[kSlots]{};
  };

  int PostSges(WorkQueueWriter& writer, size_t count, uint32_t length_bytes, uint8_t flags = 0,
               shm::WorkOpcode opcode = shm::WorkOpcode::kSend) {
    const std::vector<shm::WorkSge> sges(
        count, shm::WorkSge{reinterpret_cast<uintptr_t>(bytes_.data()), length_bytes, 1});
    SendRequest request;
    request.sges = sges;
    request.flags = flags;
    request.opcode = opcode;
    return writer.PostSend(request);
  }

  Ring ring_;
  std::string bytes_ = std::string(2000, 'x');
};

TEST_F(WorkQueueWriterTest, NothingIsSeenBeforePublish) {
  WorkQueueWriter writer(&ring_.header, kSlots, {4, 4, 64});
  ASSERT_EQ(writer.PostSend({}), 0);
  ASSERT_EQ(writer.PostSend({}), 0);
  EXPECT_EQ(ring_.header.tail.load(), 0u);
  writer.Publish();
  EXPECT_EQ(ring_.header.tail.load(), 2u);
}

TEST_F(WorkQueueWriterTest, FullAtItsDepthUntilRetired) {
  WorkQueueWriter writer(&ring_.header, kSlots, {3, 4, 64});
  for (int i = 0; i < 3; ++i) ASSERT_EQ(writer.PostSend({}), 0);
  EXPECT_EQ(writer.PostSend({}), ENOMEM);
  writer.RetireUpTo(2);
  EXPECT_EQ(writer.outstanding(), 1u);
  ASSERT_EQ(writer.PostSend({}), 0);
  ASSERT_EQ(writer.PostSend({}), 0);
  EXPECT_EQ(writer.PostSend({}), ENOMEM);
}

TEST_F(WorkQueueWriterTest, ReceivesAreRetiredOneByOne) {
  WorkQueueWriter writer(&ring_.header, kSlots, {2, 4, 0});
  ASSERT_EQ(writer.PostRecv(1, {}), 0);
  ASSERT_EQ(writer.PostRecv(2, {}), 0);
  EXPECT_EQ(writer.PostRecv(3, {}), ENOMEM);
  writer.RetireOne();
  EXPECT_EQ(writer.PostRecv(3, {}), 0);
}

TEST_F(WorkQueueWriterTest, CountsThatMakeNoSenseRetireNothing) {
  WorkQueueWriter writer(&ring_.header, kSlots, {4, 4, 64});
  for (int i = 0; i < 4; ++i) ASSERT_EQ(writer.PostSend({}), 0);
  for (const uint32_t nonsense : {5u, 0xffffffffu, 0x80000000u}) {
    writer.RetireUpTo(nonsense);
    EXPECT_EQ(writer.outstanding(), 4u) << nonsense;
  }
  writer.RetireUpTo(3);
  writer.RetireUpTo(1);  // an older one, polled late
  EXPECT_EQ(writer.outstanding(), 1u);
}

TEST_F(WorkQueueWriterTest, TheLimitsAreKept) {
  WorkQueueWriter writer(&ring_.header, kSlots, {4, 2, 100});
  struct {
    const char* name;
    size_t sges;
    uint32_t length_bytes;
    uint8_t flags;
    shm::WorkOpcode opcode;
    int result;
  } const cases[] = {
      {"all SGEs", 2, 10, 0, shm::WorkOpcode::kSend, 0},
      {"too many SGEs", 3, 10, 0, shm::WorkOpcode::kSend, EINVAL},
      {"all inline bytes", 2, 50, shm::kWorkInline, shm::WorkOpcode::kRdmaWrite, 0},
      {"too many inline bytes", 2, 51, shm::kWorkInline, shm::WorkOpcode::kSend, EINVAL},
      {"inline bytes that overflow 32 bits", 2, 0x80000000, shm::kWorkInline,
       shm::WorkOpcode::kSend, EINVAL},
      {"inline read", 1, 10, shm::kWorkInline, shm::WorkOpcode::kRdmaRead, EINVAL},
  };
  for (const auto& c : cases) {
    const uint32_t before = writer.outstanding();
    EXPECT_EQ(PostSges(writer, c.sges, c.length_bytes, c.flags, c.opcode), c.result) << c.name;
    EXPECT_EQ(writer.outstanding(), before + (c.result == 0 ? 1 : 0)) << c.name;
  }
}

TEST_F(WorkQueueWriterTest, ARefusedPostLeavesTheChainBeforeItWhole) {
  WorkQueueWriter writer(&ring_.header, kSlots, {8, 2, 0});
  ASSERT_EQ(PostSges(writer, 1, 10), 0);
  ASSERT_EQ(PostSges(writer, 2, 10), 0);
  ASSERT_EQ(PostSges(writer, 3, 10), EINVAL);
  writer.Publish();
  EXPECT_EQ(ring_.header.tail.load(), 2u);
}

TEST_F(WorkQueueWriterTest, ADepthThatTheRingCannotHoldIsCut) {
  // 8 slots per WR with so much inline data: four fit, whatever was promised.
  WorkQueueWriter writer(&ring_.header, kSlots, {100, 4, 960});
  EXPECT_EQ(writer.depth(), 4u);
}

TEST_F(WorkQueueWriterTest, ResetStartsCountsAnewAndDropsWhatWasNotPublished) {
  WorkQueueWriter writer(&ring_.header, kSlots, {3, 4, 64});
  ASSERT_EQ(writer.PostSend({}), 0);
  writer.Publish();
  ASSERT_EQ(writer.PostSend({}), 0);
  writer.Reset();
  EXPECT_EQ(writer.outstanding(), 0u);
  ASSERT_EQ(writer.PostSend({}), 0);
  writer.Publish();
  EXPECT_EQ(ring_.header.tail.load(), 2u);
  writer.RetireUpTo(1);
  EXPECT_EQ(writer.outstanding(), 0u);
}

}  // namespace
}  // namespace rdmad::sdk
