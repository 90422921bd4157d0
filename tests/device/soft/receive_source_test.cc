// Receives that are posted but not yet with the device: a message that finds none asks for them.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/device/soft/ud_bed.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpType;
using device::WcStatus;
using device::WrOpcode;

// Has one receive, or none.
class Source final : public device::ReceiveSource {
 public:
  void PostReceives() noexcept override {
    ++asked;
    if (next) std::exchange(next, nullptr)();
  }
  std::function<void()> next;
  int asked = 0;
};

class ReceiveSource : public PathTest {};
RDMAD_ON_BOTH_PATHS(ReceiveSource);

TEST_P(ReceiveSource, IsAskedBeforeAMessageIsDroppedOrHasToWait) {
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    for (const bool shared : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << (type == QpType::kRc ? "RC" : "UC") << " srq " << shared);
      BedOptions options = Options();
      options.type = type;
      options.srq_wr = shared ? 16 : 0;
      Bed bed(options);
      Source source;
      if (shared) {
        bed.b.srq->SetReceiveSource(&source);
      } else {
        bed.b.qp->SetReceiveSource(&source);
      }
      source.next = [&] { EXPECT_EQ(bed.PostRecv(bed.b, 2, 1000, 200), PostResult::kOk); };
      ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 200), PostResult::kOk);
      bed.Fill(bed.a, 0, 200);
      for (uint64_t wr_id : {1, 2}) {
        const device::Sge sge = bed.a.Sge(0, 100);
        ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kSend, &sge)), PostResult::kOk);
        ASSERT_TRUE(bed.Await(bed.b.receives, wr_id));
        EXPECT_EQ(bed.b.receives.all.back().wr_id, wr_id);
        EXPECT_EQ(bed.b.receives.all.back().status, WcStatus::kSuccess);
      }
      EXPECT_TRUE(bed.Same(0, 1000, 100));
      EXPECT_EQ(source.asked, 1) << "there was one for the first message";
      EXPECT_EQ(bed.Counter(bed.b, "tx_rnr_nak") + bed.Counter(bed.b, "local_rnr_waits"), 0u);
      EXPECT_EQ(bed.Counter(bed.b, "drop_refused"), 0u);
    }
  }
}

TEST_P(ReceiveSource, ThatHasNothingChangesNothing) {
  BedOptions options = Options();
  options.type = QpType::kUc;
  Bed bed(options);
  Source source;
  bed.b.qp->SetReceiveSource(&source);
  const device::Sge sge = bed.a.Sge(0, 100);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  bed.network.RunUntilQuiet();
  EXPECT_TRUE(bed.b.receives.all.empty());
  EXPECT_EQ(source.asked, 1);
  EXPECT_EQ(bed.Counter(bed.b, "drop_refused"), 1u);
  bed.b.qp->SetReceiveSource(nullptr);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
  bed.network.RunUntilQuiet();
  EXPECT_EQ(source.asked, 1);
}

// A receive of the ring counts for the limit like any other.
TEST_P(ReceiveSource, OfAnSrqKeepsItsLimitQuiet) {
  BedOptions options = Options();
  options.srq_wr = 16;
  Bed bed(options);
  Source source;
  bed.b.srq->SetReceiveSource(&source);
  source.next = [&] {
    for (uint64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(bed.PostRecv(bed.b, i, 0, 200), PostResult::kOk);
    }
  };
  ASSERT_EQ(bed.b.srq->SetLimit(3), device::QpResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 100);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 0u);
}

// Also while the device has some, only fewer than the limit.
TEST_P(ReceiveSource, OfAnSrqCountsForTheLimitBesideWhatTheDeviceHas) {
  BedOptions options = Options();
  options.srq_wr = 16;
  Bed bed(options);
  Source source;
  bed.b.srq->SetReceiveSource(&source);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(bed.PostRecv(bed.b, i, 0, 200), PostResult::kOk);
  source.next = [&] { EXPECT_EQ(bed.PostRecv(bed.b, 3, 0, 200), PostResult::kOk); };
  ASSERT_EQ(bed.b.srq->SetLimit(3), device::QpResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 100);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 0u);
  // Then there are only two, and no more in the ring.
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 2));
  EXPECT_EQ(bed.b.events->Count(AsyncEventType::kSrqLimitReached), 1u);
}

TEST_P(ReceiveSource, IsAskedForDatagrams) {
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    UdBed bed({.path = GetParam(), .srq = shared});
    bed.ToRts(bed.a);
    bed.ToRts(bed.b);
    Source source;
    if (shared) {
      bed.b.srq->SetReceiveSource(&source);
    } else {
      bed.b.qp->SetReceiveSource(&source);
    }
    source.next = [&] { EXPECT_EQ(bed.Recv(9, 1000, 500), PostResult::kOk); };
    ASSERT_EQ(bed.Send(5, 301), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.b.receives, 1));
    EXPECT_EQ(bed.b.receives.all[0].wr_id, 9u);
    EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kSuccess);
    EXPECT_EQ(source.asked, 1);
  }
}

}  // namespace
}  // namespace rdmad::soft
