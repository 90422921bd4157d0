// The verbs device against a library that refuses, forgets and breaks: what no driver at hand does
// on demand. What drivers do when all is well is tested on rxe (tests/vm).
#include "daemon/device/verbs/verbs_data_path.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "daemon/device/verbs/verbs_cq.h"
#include "tests/device/verbs/verbs_data_path_testing.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

using device::PostResult;
using device::QpState;

class VerbsDataPathTest : public VerbsObjectsTest {
 protected:
  void SetUp() override {
    VerbsObjectsTest::SetUp();
    MakeQp();
  }
};

TEST_F(VerbsDataPathTest, SendsOfATurnGoOutAsOneChain) {
  MoveToRts();
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_EQ(Send(id), PostResult::kOk);
  EXPECT_EQ(lib_.posts, 0);
  Turn();
  EXPECT_EQ(lib_.posts, 1);
  EXPECT_EQ(lib_.sends.size(), 5u);
}

TEST_F(VerbsDataPathTest, ACompletionSpeaksForTheUnsignaledSendsBeforeIt) {
  MoveToRts();
  ASSERT_EQ(Send(1, 0), PostResult::kOk);
  ASSERT_EQ(Send(2, 0), PostResult::kOk);
  ASSERT_EQ(Send(3), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.sends[2].wr_id);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"3:0:3"});
  // Their places are free again.
  for (uint64_t id = 4; id < 12; ++id) ASSERT_EQ(Send(id), PostResult::kOk);
  EXPECT_EQ(Send(12), PostResult::kQueueFull);
}

TEST_F(VerbsDataPathTest, PostingChecksStateAndLimits) {
  EXPECT_EQ(Send(1), PostResult::kWrongState);
  EXPECT_EQ(Recv(1), PostResult::kWrongState);
  Move(QpState::kInit);
  EXPECT_EQ(Send(1), PostResult::kWrongState);
  EXPECT_EQ(Recv(1), PostResult::kOk);
  Move(QpState::kRtr);
  Move(QpState::kRts);
  const std::vector<device::Sge> sges(4);
  device::SendWr wr{};
  wr.sges = sges;
  EXPECT_EQ(qp_->PostSend(wr, now_), PostResult::kTooManySges);
  EXPECT_EQ(qp_->PostRecv({2, sges}, now_), PostResult::kTooManySges);
  const device::Sge big{0, (1 << 20) + 1, 0};
  wr.sges = {&big, 1};
  EXPECT_EQ(qp_->PostSend(wr, now_), PostResult::kTooLong);
  EXPECT_TRUE(lib_.sends.empty());
}

// Some drivers hold inline pieces against the SGEs that the QP was made with.
TEST_F(VerbsDataPathTest, InlineBytesInPiecesFitWhateverSgesWereAskedFor) {
  MoveToRts();
  const std::array<std::byte, 64> bytes{};
  device::SendWr wr{};
  wr.opcode = device::WrOpcode::kSend;
  wr.inline_bytes = 64;
  wr.inline_data.pieces = {std::span(bytes).first(16), std::span(bytes).subspan(16, 16),
                           std::span(bytes).last(32)};
  ASSERT_EQ(qp_->PostSend(wr, now_), PostResult::kOk);
  Turn();
  ASSERT_EQ(lib_.sends.size(), 1u);
  EXPECT_EQ(lib_.sends[0].bytes, 64u);
}

TEST_F(VerbsDataPathTest, ASendThatTheDriverRefusesFailsInItsPlaceAndTheRestFlushes) {
  MoveToRts();
  ASSERT_EQ(Send(1, 0), PostResult::kOk);
  for (uint64_t id = 2; id <= 4; ++id) ASSERT_EQ(Send(id), PostResult::kOk);
  lib_.sends_taken = 2;
  Turn();
  ASSERT_EQ(Send(5), PostResult::kOk);
  Turn();
  EXPECT_EQ(lib_.sends.size(), 2u);
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_RTS) << "the error state would flush the two";
  EXPECT_TRUE(sink_.Take().empty()) << "not before those that the hardware has";
  lib_.Complete(lib_.sends[1].wr_id);
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  EXPECT_EQ(sink_.Take(), (Strings{"2:0:2", "3:2:3", "4:5:4", "5:5:5"}));
  // Nothing is left that could flush what comes later, so that happens at once.
  ASSERT_EQ(Send(6), PostResult::kOk);
  ASSERT_EQ(Recv(7), PostResult::kOk);
  EXPECT_EQ(sink_.Take(), (Strings{"6:5:6", "7:5"}));
}

TEST_F(VerbsDataPathTest, ASendThatCannotBeExecutedFailsByNameOnceThoseBeforeItAreDone) {
  MoveToRts();
  ASSERT_EQ(Send(1), PostResult::kOk);
  ASSERT_EQ(Send(2, 0), PostResult::kOk);
  device::SendWr refused{};
  refused.wr_id = 3;
  refused.verdict = device::WcStatus::kLocLenErr;
  ASSERT_EQ(qp_->PostSend(refused, now_), PostResult::kOk);
  ASSERT_EQ(Send(4), PostResult::kOk);
  Turn();
  ASSERT_EQ(lib_.sends.size(), 2u);
  EXPECT_NE(lib_.sends[1].flags & IBV_SEND_SIGNALED, 0u) << "or nobody would know that it is done";
  lib_.Complete(lib_.sends[0].wr_id);
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_RTS);
  EXPECT_EQ(sink_.Take(), Strings{"1:0:1"});
  lib_.Complete(lib_.sends[1].wr_id);
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  EXPECT_EQ(sink_.Take(), (Strings{"3:1:3", "4:5:4"})) << "the second was not asked for";
}

// Sends that were posted long ago and will not tell.
TEST_F(VerbsDataPathTest, AMarkTellsThatTheHardwareIsDoneWithThoseThatDoNotTell) {
  MoveToRts();
  ASSERT_EQ(Send(1, 0), PostResult::kOk);
  Turn();
  device::SendWr refused{};
  refused.wr_id = 2;
  refused.verdict = device::WcStatus::kLocQpOpErr;
  ASSERT_EQ(qp_->PostSend(refused, now_), PostResult::kOk);
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  ASSERT_EQ(lib_.sends.size(), 2u) << "the mark";
  EXPECT_TRUE(sink_.Take().empty());
  lib_.Complete(lib_.sends[1].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"2:2:2"});
}

TEST_F(VerbsDataPathTest, ARefusedSendFlushesIfOneBeforeItFails) {
  MoveToRts();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(Send(id), PostResult::kOk);
  lib_.sends_taken = 2;
  Turn();
  lib_.Complete(lib_.sends[0].wr_id, IBV_WC_RETRY_EXC_ERR);
  Turn();
  ASSERT_EQ(lib_.sends.size(), 3u) << "two, and the mark behind them";
  lib_.Complete(lib_.sends[1].wr_id, IBV_WC_WR_FLUSH_ERR);
  lib_.Complete(lib_.sends[2].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:12:1", "2:5:2", "3:5:3", "4:5:4"}));
}

TEST_F(VerbsDataPathTest, ASignaledSendThatTheDriverForgetsIsFlushedInItsPlace) {
  MoveToRts();
  ASSERT_EQ(Send(1, 0), PostResult::kOk);
  ASSERT_EQ(Send(2), PostResult::kOk);
  ASSERT_EQ(Send(3, 0), PostResult::kOk);
  ASSERT_EQ(Send(4), PostResult::kOk);
  lib_.sends_taken = 3;
  Turn();
  Move(QpState::kErr);
  ASSERT_EQ(lib_.sends.size(), 4u) << "three, and the mark behind them";
  lib_.Complete(lib_.sends[3].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"2:5:2", "4:2:4"}));
}

TEST_F(VerbsDataPathTest, TheHardwareIsAskedToTellThatTheQueueIsDrained) {
  MoveToRts();
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrEnSqdAsyncNotify;
  attr.state = QpState::kSqd;
  attr.en_sqd_async_notify = true;
  ASSERT_EQ(qp_->Modify(attr, now_), device::QpResult::kOk);
  EXPECT_EQ(lib_.last_mask, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
  EXPECT_EQ(lib_.last_modify.en_sqd_async_notify, 1);
}

class VerbsRxeDataPathTest : public VerbsDataPathTest {
 protected:
  void SetUp() override {
    vendor_id_ = kRxeVendor;
    VerbsDataPathTest::SetUp();
  }
};

// It would look at them with the next post only.
TEST_F(VerbsRxeDataPathTest, SendsThatWaitedInSqdAreStartedByADoorbell) {
  MoveToRts();
  Move(QpState::kSqd);
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  ASSERT_EQ(lib_.sends.size(), 1u);
  const int posts = lib_.posts;
  Move(QpState::kRts);
  EXPECT_EQ(lib_.posts, posts + 1);
  EXPECT_EQ(lib_.sends.size(), 1u) << "and nothing else";
  lib_.Complete(lib_.sends[0].wr_id);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"1:0:1"});
  Move(QpState::kSqd);
  Move(QpState::kRts);
  EXPECT_EQ(lib_.posts, posts + 1) << "nothing waits";
}

TEST_F(VerbsDataPathTest, OtherHardwareStartsThemItself) {
  MoveToRts();
  Move(QpState::kSqd);
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  const int posts = lib_.posts;
  Move(QpState::kRts);
  EXPECT_EQ(lib_.posts, posts);
}

// rxe's receive queue is read by nobody once the QP is in error.
TEST_F(VerbsDataPathTest, ReceivesPostedInErrorFlushBehindTheHardwares) {
  MoveToRts();
  ASSERT_EQ(Recv(1), PostResult::kOk);
  Move(QpState::kErr);
  ASSERT_EQ(Recv(2), PostResult::kOk);
  EXPECT_TRUE(sink_.Take().empty());
  lib_.Complete(lib_.recvs[0], IBV_WC_WR_FLUSH_ERR);
  lib_.RaiseCompletionEvent();
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:5", "2:5"}));
  ASSERT_EQ(Recv(3), PostResult::kOk);
  EXPECT_EQ(sink_.Take(), Strings{"3:5"});
  EXPECT_EQ(lib_.recvs.size(), 1u);
}

TEST_F(VerbsDataPathTest, AnErrorCompletionMovesTheQpSoThatLateReceivesFlushToo) {
  MoveToRts();
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.sends[0].wr_id, IBV_WC_RETRY_EXC_ERR);
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  ASSERT_EQ(Recv(2), PostResult::kOk);
  EXPECT_EQ(sink_.Take(), (Strings{"1:12:1", "2:5"}));
}

TEST_F(VerbsDataPathTest, AReceiveThatTheDriverRefusesFlushesAndTheAppHears) {
  MoveToRts();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(Recv(id), PostResult::kOk);
  lib_.recvs_taken = 1;
  Turn();
  EXPECT_EQ(lib_.recvs.size(), 1u);
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  ASSERT_EQ(sink_.events.size(), 1u);
  EXPECT_EQ(sink_.events[0].type, device::AsyncEventType::kQpFatal);
  EXPECT_EQ(sink_.events[0].owner_token, 99u);
  EXPECT_TRUE(sink_.Take().empty());
  ASSERT_EQ(Recv(4), PostResult::kOk);
  lib_.Complete(lib_.recvs[0], IBV_WC_WR_FLUSH_ERR);
  lib_.RaiseCompletionEvent();
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:5", "2:5", "3:5", "4:5"}));
  EXPECT_EQ(lib_.recv_posts, 1);
}

TEST_F(VerbsDataPathTest, IfTheDriverTakesNoReceiveOfAChainAllFlushAtOnce) {
  MoveToRts();
  lib_.recvs_taken = 0;
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_EQ(Recv(id), PostResult::kOk);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:5", "2:5"}));
}

TEST_F(VerbsDataPathTest, ReceivesOfATurnAreOneDoorbellAndBeforeTheSends) {
  MoveToRts();
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(Recv(id), PostResult::kOk);
  EXPECT_EQ(lib_.recv_posts, 0);
  ASSERT_EQ(Send(5), PostResult::kOk);
  Turn();
  EXPECT_EQ(lib_.recv_posts, 1);
  EXPECT_EQ(lib_.recv_posts_before_sends, 1);
  ASSERT_EQ(lib_.recvs.size(), 4u);
  for (size_t i = 0; i < 4; ++i) lib_.Complete(lib_.recvs[i], IBV_WC_SUCCESS, IBV_WC_RECV);
  lib_.RaiseCompletionEvent();
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:0", "2:0", "3:0", "4:0"}));
}

// A receive that waits for its doorbell is none of the hardware's when the QP fails.
TEST_F(VerbsDataPathTest, ReceivesThatWaitForTheirDoorbellFlushWithTheQp) {
  MoveToRts();
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  ASSERT_EQ(Recv(2), PostResult::kOk);
  lib_.Complete(lib_.sends[0].wr_id, IBV_WC_RETRY_EXC_ERR);
  path_->Drain(static_cast<VerbsCq&>(*cq_), now_);
  EXPECT_EQ(sink_.Take(), (Strings{"1:12:1", "2:5"}));
  Turn();
  EXPECT_EQ(lib_.recv_posts, 0);
}

TEST_F(VerbsDataPathTest, AQpThatGoesTakesItsWaitingReceivesWithIt) {
  MoveToRts();
  ASSERT_EQ(Recv(1), PostResult::kOk);
  DropQp();
  Turn();
  EXPECT_EQ(lib_.recv_posts, 0);
}

TEST_F(VerbsDataPathTest, ADeadDeviceFlushesEverythingOnceAndIsNotTouchedAgain) {
  MoveToRts();
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  ASSERT_EQ(Send(2), PostResult::kOk);  // still in the batch
  ASSERT_EQ(Recv(3), PostResult::kOk);
  lib_.Complete(lib_.sends[0].wr_id);  // too late
  path_->Kill(*open_, now_);
  EXPECT_EQ(sink_.Take(), (Strings{"1:5:1", "2:5:2", "3:5"}));
  open_->hardware()->CloseHardware();
  EXPECT_EQ(lib_.open_objects, 0);
  const int posts = lib_.posts;
  ASSERT_EQ(Send(4), PostResult::kOk);
  ASSERT_EQ(Recv(5), PostResult::kOk);
  EXPECT_EQ(sink_.Take(), (Strings{"4:5:3", "5:5"}));
  Turn();
  EXPECT_EQ(path_->NextDeadline(now_), device::kNever);
  EXPECT_EQ(lib_.posts, posts);
  EXPECT_EQ(qp_->Query().state, QpState::kErr);
  device::QpAttr attr;
  attr.mask = device::kQpAttrState;
  attr.state = QpState::kInit;
  EXPECT_EQ(qp_->Modify(attr, now_), device::QpResult::kGone);
  EXPECT_TRUE(absl::IsUnavailable(context_->AllocPd().status()));
}

// What takes long is on another thread; here, the test takes both parts.
class VerbsSlowTest : public VerbsObjectsTest {
 protected:
  std::unique_ptr<device::SlowObject> Make(bool region) {
    if (!region) return *context_->CreateAh(*pd_, {});
    return *context_->RegisterMr(*pd_, {.length_bytes = 1 << 30});
  }
};

TEST_F(VerbsSlowTest, WhatMayTakeLongIsNotDoneWhenItIsMade) {
  const int before = lib_.open_objects;
  const auto ah = Make(false), region = Make(true);
  EXPECT_TRUE(ah->slow());
  EXPECT_TRUE(region->slow());
  EXPECT_FALSE((*context_->RegisterMr(*pd_, {.length_bytes = 1 << 20}))->slow());
  EXPECT_EQ(lib_.open_objects, before);
  ASSERT_OK(ah->Prepare());
  ASSERT_OK(region->Prepare());
  EXPECT_EQ(lib_.open_objects, before + 2);
  region->Release();
  EXPECT_EQ(lib_.open_objects, before + 1);
}

class VerbsSlowRemovalTest : public VerbsSlowTest, public ::testing::WithParamInterface<bool> {};

TEST_P(VerbsSlowRemovalTest, ADeviceThatGoesMeanwhileIsClosedWhenTheCallIsOver) {
  const auto object = Make(GetParam()), late = Make(true);
  int idle = 0;
  lib_.during_slow_call = [&] {
    path_->Kill(*open_, now_);
    const int open = lib_.open_objects;
    EXPECT_FALSE(open_->hardware()->CloseHardware([&] { ++idle; }));
    EXPECT_EQ(lib_.open_objects, open) << "the call has the context in its hands";
    EXPECT_EQ(idle, 0);
  };
  const absl::Status status = object->Prepare();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(idle, 1);
  lib_.during_slow_call = [] { ADD_FAILURE() << "a call to a device that is gone"; };
  EXPECT_TRUE(absl::IsUnavailable(late->Prepare()));
  EXPECT_TRUE(absl::IsUnavailable(context_->AllocPd().status()));
  EXPECT_TRUE(open_->hardware()->CloseHardware());
  EXPECT_EQ(lib_.open_objects, 0);
}

INSTANTIATE_TEST_SUITE_P(Either, VerbsSlowRemovalTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Region" : "AddressHandle"; });

TEST_F(VerbsSlowTest, ARegionOfADeviceThatIsGoneHasNothingToRelease) {
  const auto region = Make(true);
  ASSERT_OK(region->Prepare());
  path_->Kill(*open_, now_);
  EXPECT_TRUE(open_->hardware()->CloseHardware());
  EXPECT_EQ(lib_.open_objects, 0);
  region->Release();
  EXPECT_EQ(lib_.open_objects, 0);
}

TEST_F(VerbsDataPathTest, TheDevicesOwnWordThatItGoesIsEnough) {
  MoveToRts();
  ASSERT_EQ(Recv(1), PostResult::kOk);
  lib_.RaiseAsync(IBV_EVENT_DEVICE_FATAL);
  Turn();
  EXPECT_TRUE(open_->dead());
  EXPECT_EQ(sink_.Take(), Strings{"1:5"});
}

TEST_F(VerbsDataPathTest, ABrokenCqSaysSoToItsOwner) {
  lib_.RaiseAsync(IBV_EVENT_CQ_ERR);
  Turn();
  Turn();
  EXPECT_EQ(sink_.errors, 1);
  EXPECT_TRUE(sink_.events.empty());
}

// For lists of many QPs.
TEST_F(VerbsDataPathTest, WhatIsKnownOfAQpAsksNoHardware) {
  device::QpAttr attr;
  attr.mask = device::kQpAttrState | device::kQpAttrPathMtu;
  attr.path_mtu = device::Mtu::k2048;
  for (const QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) {
    attr.state = state;
    ASSERT_EQ(qp_->Modify(attr, now_), device::QpResult::kOk);
    EXPECT_EQ(qp_->Known().state, state);
  }
  EXPECT_EQ(qp_->Known().path_mtu, device::Mtu::k2048);
  lib_.RaiseAsync(IBV_EVENT_QP_ACCESS_ERR);
  Turn();
  EXPECT_EQ(qp_->Known().state, QpState::kErr);
  Move(QpState::kReset);
  EXPECT_EQ(qp_->Known().state, QpState::kReset);
  EXPECT_EQ(lib_.qp_queries, 0);
}

TEST_F(VerbsDataPathTest, CompletionsFromBeforeAResetFindNobody) {
  MoveToRts();
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  const uint64_t stale = lib_.sends[0].wr_id;
  Move(QpState::kReset);
  MoveToRts();
  ASSERT_EQ(Send(2), PostResult::kOk);
  Turn();
  lib_.Complete(stale);
  lib_.Complete(lib_.sends[1].wr_id);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"2:0:1"}) << "counted anew";
}

TEST_F(VerbsDataPathTest, AQuietCqIsArmedAndLeftAloneUntilItsEvent) {
  MoveToRts();
  EXPECT_EQ(lib_.arms, 1) << "from the start";
  ASSERT_EQ(Recv(1), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.recvs[0], IBV_WC_SUCCESS, IBV_WC_RECV, 7);
  Turn();
  EXPECT_TRUE(sink_.Take().empty()) << "cold: nobody looks";
  lib_.RaiseCompletionEvent();
  EXPECT_NE(Turn(), 0);
  EXPECT_EQ(sink_.Take(), Strings{"1:0"});
  // What comes while it is polled needs no event.
  ASSERT_EQ(Recv(2), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.recvs[1], IBV_WC_SUCCESS, IBV_WC_RECV, 7);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"2:0"});
  // The engine goes to sleep.
  EXPECT_EQ(path_->NextDeadline(now_), device::kNever);
  EXPECT_EQ(lib_.arms, 2);
}

TEST_F(VerbsDataPathTest, WhatCameWhileArmingKeepsTheEngineAwake) {
  MoveToRts();
  ASSERT_EQ(Send(1), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.sends[0].wr_id);
  EXPECT_EQ(path_->NextDeadline(now_), now_);
  EXPECT_EQ(sink_.Take(), Strings{"1:0:1"});
  EXPECT_EQ(path_->NextDeadline(now_), device::kNever);
}

}  // namespace
}  // namespace rdmad::verbs
