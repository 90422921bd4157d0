// The verbs device against a library that refuses, forgets and breaks: what no driver at hand does
// on demand. What drivers do when all is well is tested on rxe (tests/vm).
#include "daemon/device/verbs/verbs_data_path.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "daemon/device/verbs/verbs_context.h"
#include "daemon/device/verbs/verbs_qp.h"
#include "proto/shm/completion_queue.h"
#include "tests/device/verbs/fake_ibverbs.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

using device::PostResult;
using device::QpState;
using device::WcStatus;
using testing::FakeIbverbs;

class RecordingSink final : public device::CompletionSink, public device::AsyncSink {
 public:
  void OnCompletion(const device::Wc& wc) noexcept override { wcs.push_back(wc); }
  void OnAsyncEvent(const device::AsyncEvent& event) noexcept override { events.push_back(event); }

  // "id:status:wqe_count", of sends; "id:status" of receives.
  std::vector<std::string> Take() {
    std::vector<std::string> taken;
    for (const device::Wc& wc : wcs) {
      std::string text = std::to_string(wc.wr_id) + ":" + std::to_string(int(wc.status));
      if ((wc.flags & shm::kCqeRecvQueue) == 0) text += ":" + std::to_string(wc.wqe_count);
      taken.push_back(text);
    }
    wcs.clear();
    return taken;
  }

  std::vector<device::Wc> wcs;
  std::vector<device::AsyncEvent> events;
};

using Strings = std::vector<std::string>;

class VerbsDataPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device::DeviceAttr attr;
    attr.max_qp_wr = 1024;
    attr.max_sge = 4;
    attr.max_cqe = 1024;
    attr.max_msg_bytes = 1 << 20;
    attr.max_mr_bytes = 1 << 30;
    ASSERT_OK_AND_ASSIGN(path_, VerbsDataPath::Create(&sink_));
    ASSERT_OK_AND_ASSIGN(open_, OpenContext::Open(lib_.device(), attr, path_.get()));
    context_ = std::make_unique<VerbsContext>(open_);
    context_->Activate(now_);
    ASSERT_OK_AND_ASSIGN(pd_, context_->AllocPd());
    ASSERT_OK_AND_ASSIGN(cq_, context_->CreateCq(64, &sink_));
    cq_->Activate(now_);
    device::QpInit init;
    init.send_cq = init.recv_cq = cq_.get();
    init.cap = {.max_send_wr = 8,
                .max_recv_wr = 4,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_bytes = 64};
    init.cookie = 5;
    init.owner_token = 99;
    ASSERT_OK_AND_ASSIGN(qp_, context_->CreateQp(*pd_, init));
    qp_->Activate(now_);
  }
  void TearDown() override {
    qp_->Deactivate(now_);
    cq_->Deactivate(now_);
    context_->Deactivate(now_);
    qp_.reset();
    cq_.reset();
    pd_.reset();
    context_.reset();
    open_.reset();
    EXPECT_EQ(lib_.open_objects, 0) << "everything was given back";
  }

  void Move(QpState state) {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState;
    attr.state = state;
    EXPECT_EQ(qp_->Modify(attr, now_), device::QpResult::kOk);
  }
  void MoveToRts() {
    for (QpState state : {QpState::kInit, QpState::kRtr, QpState::kRts}) Move(state);
  }
  PostResult Send(uint64_t id, uint8_t flags = shm::kWorkSignaled) {
    device::SendWr wr{};
    wr.wr_id = id;
    wr.opcode = device::WrOpcode::kSend;
    wr.flags = flags;
    return qp_->PostSend(wr, now_);
  }
  PostResult Recv(uint64_t id) { return qp_->PostRecv({id, {}}, now_); }
  int Turn() { return path_->DoWork(now_ += 10'000); }

  FakeIbverbs lib_;
  RecordingSink sink_;
  device::TimeNs now_ = 1'000'000;
  std::unique_ptr<VerbsDataPath> path_;
  std::shared_ptr<OpenContext> open_;
  std::unique_ptr<VerbsContext> context_;
  std::unique_ptr<device::Pd> pd_;
  std::unique_ptr<device::Cq> cq_;
  std::unique_ptr<device::Qp> qp_;
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
  const std::vector<device::Sge> sges(3);
  device::SendWr wr{};
  wr.sges = sges;
  EXPECT_EQ(qp_->PostSend(wr, now_), PostResult::kTooManySges);
  EXPECT_EQ(qp_->PostRecv({2, sges}, now_), PostResult::kTooManySges);
  const device::Sge big{0, (1 << 20) + 1, 0};
  wr.sges = {&big, 1};
  EXPECT_EQ(qp_->PostSend(wr, now_), PostResult::kTooLong);
  wr.sges = {};
  wr.opcode = device::WrOpcode::kBindMw;
  EXPECT_EQ(qp_->PostSend(wr, now_), PostResult::kBadOpcode);
  EXPECT_TRUE(lib_.sends.empty());
}

TEST_F(VerbsDataPathTest, ASendThatTheDriverRefusesFailsInItsPlaceAndTheRestFlushes) {
  MoveToRts();
  ASSERT_EQ(Send(1, 0), PostResult::kOk);
  for (uint64_t id = 2; id <= 4; ++id) ASSERT_EQ(Send(id), PostResult::kOk);
  lib_.sends_taken = 2;
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  ASSERT_EQ(lib_.sends.size(), 3u) << "two, and the mark behind them";
  ASSERT_EQ(Send(5), PostResult::kOk);
  Turn();
  EXPECT_TRUE(sink_.Take().empty()) << "not before those that the hardware has";
  lib_.Complete(lib_.sends[1].wr_id, IBV_WC_WR_FLUSH_ERR);
  lib_.Complete(lib_.sends[2].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"2:5:2", "3:2:3", "4:5:4", "5:5:5"}));
  // Nothing is left that could flush what comes later, so that happens at once.
  ASSERT_EQ(Send(6), PostResult::kOk);
  ASSERT_EQ(Recv(7), PostResult::kOk);
  EXPECT_EQ(sink_.Take(), (Strings{"6:5:6", "7:5"}));
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
  ASSERT_EQ(Recv(1), PostResult::kOk);
  lib_.refuse_recvs = true;
  ASSERT_EQ(Recv(2), PostResult::kOk);
  ASSERT_EQ(sink_.events.size(), 1u);
  EXPECT_EQ(sink_.events[0].type, device::AsyncEventType::kQpFatal);
  EXPECT_EQ(sink_.events[0].owner_token, 99u);
  EXPECT_TRUE(sink_.Take().empty());
  lib_.Complete(lib_.recvs[0], IBV_WC_WR_FLUSH_ERR);
  lib_.RaiseCompletionEvent();
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:5", "2:5"}));
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
  open_->CloseHardware();
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

TEST_F(VerbsDataPathTest, TheDevicesOwnWordThatItGoesIsEnough) {
  MoveToRts();
  ASSERT_EQ(Recv(1), PostResult::kOk);
  lib_.RaiseDeviceFatal();
  Turn();
  EXPECT_TRUE(open_->dead());
  EXPECT_EQ(sink_.Take(), Strings{"1:5"});
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
  lib_.Complete(lib_.recvs[0], IBV_WC_SUCCESS, IBV_WC_RECV, 7);
  Turn();
  EXPECT_TRUE(sink_.Take().empty()) << "cold: nobody looks";
  lib_.RaiseCompletionEvent();
  EXPECT_NE(Turn(), 0);
  EXPECT_EQ(sink_.Take(), Strings{"1:0"});
  // What comes while it is polled needs no event.
  ASSERT_EQ(Recv(2), PostResult::kOk);
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
