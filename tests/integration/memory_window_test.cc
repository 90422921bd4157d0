// Memory windows and the keys that work requests give and take.
#include <gtest/gtest.h>

#include <optional>

#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kWindowAt = 4096;
constexpr size_t kWindowBytes = 8192;
constexpr uint32_t kRemoteRights = kAccessRemoteRead | kAccessRemoteWrite;

// `b_` opens windows on its memory, `a_` is the peer that uses them.
class MemoryWindowTest : public PathTest {
 protected:
  void SetUp() override {
    PathTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) return;
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(passive(), passive_address()));
    b_.emplace(std::move(b));
    if (b_->device.max_mw == 0) GTEST_SKIP() << b_->device.name << " has no memory windows";
    ASSERT_NO_FATAL_FAILURE(Connect());
    ASSERT_OK_AND_ASSIGN(bindable_, b_->pd.Reg(b_->memory.data(), b_->memory.size(),
                                               kAccessLocalWrite | kRemoteRights | kAccessMwBind));
  }

  // Also again, after an error; with a window that was never bound.
  void Connect() {
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(active(), active_address()));
    a_.emplace(std::move(a));
    ASSERT_OK(MoveTo(*b_, QpState::kReset));
    ASSERT_OK(Wire(*a_, *b_));
    ASSERT_OK_AND_ASSIGN(window_, MemoryWindow::Alloc(b_->pd));
  }

  WcStatus StatusOfNext(WiredEnd& end) {
    const absl::StatusOr<Wc> wc = WaitForWc(end.cq);
    EXPECT_OK(wc);
    return wc.ok() ? wc->status : WcStatus::kGeneralErr;
  }
  WcStatus Bind(uint32_t access = kRemoteRights) {
    EXPECT_OK(b_->qp.PostBind(1, &window_, bindable_, b_->memory.data() + kWindowAt, kWindowBytes,
                              access, kSendSignaled));
    return StatusOfNext(*b_);
  }
  // The peer writes by this key.
  WcStatus Write(uint32_t rkey, size_t offset, size_t length_bytes) {
    EXPECT_OK(a_->qp.PostWrite(2, a_->memory.data(), length_bytes, &a_->region, kSendSignaled,
                               b_->AddressAt(offset), rkey));
    return StatusOfNext(*a_);
  }
  WcStatus Read(uint32_t rkey, size_t offset, size_t length_bytes) {
    EXPECT_OK(a_->qp.PostRead(2, a_->memory.data(), length_bytes, &a_->region, kSendSignaled,
                              b_->AddressAt(offset), rkey));
    return StatusOfNext(*a_);
  }

  std::optional<WiredEnd> a_;
  std::optional<WiredEnd> b_;
  MemoryRegion bindable_;
  MemoryWindow window_;
};

INSTANTIATE_TEST_SUITE_P(Paths, MemoryWindowTest, ::testing::ValuesIn(kIpv4Paths), NameOfPath);

TEST_P(MemoryWindowTest, BoundWindowOpensItsRangeToThePeer) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  FillPattern({a_->memory.data(), kWindowBytes}, 1);
  EXPECT_EQ(Write(window_.rkey(), kWindowAt, kWindowBytes), WcStatus::kSuccess);
  EXPECT_EQ(PatternMismatch({b_->memory.data() + kWindowAt, kWindowBytes}, 1), std::nullopt);
  FillPattern({a_->memory.data(), kWindowBytes}, 2);
  EXPECT_EQ(Read(window_.rkey(), kWindowAt, kWindowBytes), WcStatus::kSuccess);
  EXPECT_EQ(PatternMismatch({a_->memory.data(), kWindowBytes}, 1), std::nullopt);
}

TEST_P(MemoryWindowTest, OneByteBeyondIsRefused) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  if (OnVerbs()) {
    // rxe of Linux 6.1 knows the bounds of the region only.
    const size_t last_at = WiredEnd::kMemoryBytes - kWindowBytes;
    EXPECT_EQ(Write(window_.rkey(), last_at + 1, kWindowBytes), WcStatus::kRemAccessErr);
    return;
  }
  EXPECT_EQ(Write(window_.rkey(), kWindowAt + 1, kWindowBytes), WcStatus::kRemAccessErr);
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  EXPECT_EQ(Write(window_.rkey(), kWindowAt - 1, 1), WcStatus::kRemAccessErr);
}

TEST_P(MemoryWindowTest, RightsAreThoseOfTheBind) {
  ASSERT_EQ(Bind(kAccessRemoteRead), WcStatus::kSuccess);
  EXPECT_EQ(Read(window_.rkey(), kWindowAt, 8), WcStatus::kSuccess);
  EXPECT_EQ(Write(window_.rkey(), kWindowAt, 8), WcStatus::kRemAccessErr);
}

TEST_P(MemoryWindowTest, BeforeTheFirstBindTheKeyOpensNothing) {
  EXPECT_EQ(Write(window_.rkey(), kWindowAt, 8), WcStatus::kRemAccessErr);
}

TEST_P(MemoryWindowTest, RegionMustAllowBinds) {
  EXPECT_OK(
      b_->qp.PostBind(1, &window_, b_->region, b_->memory.data(), 8, kRemoteRights, kSendSignaled));
  EXPECT_EQ(StatusOfNext(*b_), WcStatus::kMwBindErr);
}

TEST_P(MemoryWindowTest, LocalInvalidateTakesTheKeyBackAndTheWindowCanBeBoundAnew) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  const uint32_t old_key = window_.rkey();
  ASSERT_OK(b_->qp.PostLocalInv(3, old_key, kSendSignaled));
  ASSERT_EQ(StatusOfNext(*b_), WcStatus::kSuccess);
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  EXPECT_NE(window_.rkey(), old_key);
  EXPECT_EQ(Write(window_.rkey(), kWindowAt, 8), WcStatus::kSuccess);
  EXPECT_EQ(Write(old_key, kWindowAt, 8), WcStatus::kRemAccessErr);
}

TEST_P(MemoryWindowTest, BoundWindowMustBeFreedBeforeItIsBoundAgain) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  EXPECT_EQ(Bind(), WcStatus::kMwBindErr);
}

TEST_P(MemoryWindowTest, BindOfNothingFreesTheWindow) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  const uint32_t old_key = window_.rkey();
  ASSERT_OK(b_->qp.PostBind(3, &window_, bindable_, nullptr, 0, 0, kSendSignaled));
  ASSERT_EQ(StatusOfNext(*b_), WcStatus::kSuccess);
  EXPECT_EQ(Write(old_key, kWindowAt, 8), WcStatus::kRemAccessErr);
}

// The key is sent right behind the bind: work requests are done in order.
TEST_P(MemoryWindowTest, KeyMayFollowItsBindAtOnce) {
  ASSERT_OK(a_->PostRecv(4, 0, 64));
  ASSERT_OK(b_->qp.PostBind(1, &window_, bindable_, b_->memory.data() + kWindowAt, kWindowBytes,
                            kRemoteRights, 0));
  ASSERT_OK(b_->qp.PostSend(5, nullptr, 0, nullptr, kSendSignaled));
  ASSERT_EQ(StatusOfNext(*a_), WcStatus::kSuccess);
  EXPECT_EQ(Write(window_.rkey(), kWindowAt, kWindowBytes), WcStatus::kSuccess);
}

TEST_P(MemoryWindowTest, PeerTakesTheKeyBackWithItsAnswer) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  ASSERT_OK(b_->PostRecv(6, 0, 64));
  const Sge sge = {a_->AddressAt(0), 8, a_->region.lkey()};
  SendWr wr;
  wr.wr_id = 7;
  wr.opcode = WrOpcode::kSendWithInv;
  wr.sges = {&sge, 1};
  wr.imm_be = window_.rkey();
  ASSERT_OK(a_->qp.PostSend({&wr, 1}));
  ASSERT_EQ(StatusOfNext(*a_), WcStatus::kSuccess);
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(b_->cq));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_NE(wc.flags & kWcWithInv, 0u);
  EXPECT_EQ(wc.imm_be, window_.rkey());
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(Write(window_.rkey(), kWindowAt, 8), WcStatus::kRemAccessErr);
}

TEST_P(MemoryWindowTest, DeallocatedWindowOpensNothing) {
  ASSERT_EQ(Bind(), WcStatus::kSuccess);
  const uint32_t key = window_.rkey();
  ASSERT_OK(window_.Dealloc());
  EXPECT_EQ(Write(key, kWindowAt, 8), WcStatus::kRemAccessErr);
}

}  // namespace
}  // namespace rdmad::testing
