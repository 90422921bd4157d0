// How work requests between our soft device and the kernel's fail: receivers that are not ready, messages that do not fit,
// requests that make no sense, peers that are gone. Each in both directions.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/rxe_verbs_bed.h"

namespace rdmad::testing {
namespace {

class RxeErrors : public RxeVerbs {
 protected:
  void SetUp() override {
    RxeVerbs::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    Wire(QpType::kRc, kIpv4);
  }

  void ExpectOurReceiveFails(WcStatus expected) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, o_->NextReceive());
    EXPECT_EQ(wc.status, expected) << WcStatusString(wc.status);
  }
};

constexpr absl::Duration kNotReady = absl::Milliseconds(200);

TEST_F(RxeErrors, KernelWaitsUntilWeAreReady) {
  ibv_sge sge = kernel_->At(0, 100);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(k_->qp.get(), &wr, &bad), 0);
  absl::SleepFor(kNotReady);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(k_->sends.get(), 1, &wc), 0);
  WePostReceive(100);
  ExpectWeReceived(100, WcOpcode::kRecv, 0);
}

TEST_F(RxeErrors, WeWaitUntilTheKernelIsReady) {
  const Sge sge = ours_->At(0, 100);
  SendWr wr;
  wr.sges = {&sge, 1};
  ASSERT_OK(o_->qp.PostSend({&wr, 1}));
  absl::SleepFor(kNotReady);
  Wc wc;
  EXPECT_EQ(o_->sends.Poll({&wc, 1}), 0u);
  ASSERT_OK(k_->PostReceive(*kernel_, kSink, 100));
  ExpectKernelReceived(100, IBV_WC_RECV, 0);
}

// With a bound on how often.
class RxeRnr : public RxeVerbs {
 protected:
  void SetUp() override {
    RxeVerbs::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    rnr_retries_ = 2;
    Wire(QpType::kRc, kIpv4);
  }
};

TEST_F(RxeRnr, KernelGivesUpWhenWeAreNotReady) {
  KernelDoes(OnOurs(IBV_WR_SEND), 0, 100, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(RxeRnr, WeGiveUpWhenTheKernelIsNotReady) {
  WeDo(OnKernels(WrOpcode::kSend), 0, 100, WcStatus::kRnrRetryExcErr);
}

TEST_F(RxeErrors, KernelsMessageComesToAReceiveOfOursWithAWrongKey) {
  Sge sge = ours_->At(kSink, 100);
  sge.lkey ^= 0xff00;
  ASSERT_OK(o_->qp.PostRecvv(7, {&sge, 1}));
  KernelDoes(OnOurs(IBV_WR_SEND), 0, 100, IBV_WC_REM_OP_ERR);
  ExpectOurReceiveFails(WcStatus::kLocProtErr);
}

TEST_F(RxeErrors, KernelsMessageIsTooLongForOurReceive) {
  WePostReceive(99);
  KernelDoes(OnOurs(IBV_WR_SEND), 0, 100, IBV_WC_REM_INV_REQ_ERR);
  ExpectOurReceiveFails(WcStatus::kLocLenErr);
}

TEST_F(RxeErrors, OurMessageIsTooLongForTheKernelsReceive) {
  ASSERT_OK(k_->PostReceive(*kernel_, kSink, 99));
  // rxe takes it for a fault of the receive's own.
  WeDo(OnKernels(WrOpcode::kSend), 0, 100, WcStatus::kRemOpErr);
}

// The kernel's own is refused by libibverbs.
TEST_F(RxeErrors, OurAtomicIsMisaligned) {
  SendWr wr = OnKernels(WrOpcode::kFetchAdd);
  wr.remote_addr += 4;
  wr.compare_add = 1;
  WeDo(wr, 0, 8, WcStatus::kRemInvReqErr);
}

TEST_F(RxeErrors, KernelHasAWrongKey) {
  KernelDoes(OnOurs(IBV_WR_RDMA_WRITE, ours_->mr.rkey() ^ 0xff00), 0, 8, IBV_WC_REM_ACCESS_ERR);
  ExpectAsyncEventOfOurQp(kAsyncQpAccessErr);
}

TEST_F(RxeErrors, KernelAsksForWhatOurQpDoesNotServe) {
  QpAttr attr;
  attr.mask = kQpAttrAccessFlags;
  ASSERT_OK(o_->qp.Modify(attr));
  KernelDoes(OnOurs(IBV_WR_RDMA_READ), 0, 8, IBV_WC_REM_INV_REQ_ERR);
  ExpectAsyncEventOfOurQp(kAsyncQpReqErr);
}

TEST_F(RxeErrors, WeReachBeyondTheKernelsRegion) {
  SendWr wr = OnKernels(WrOpcode::kRdmaWrite);
  wr.remote_addr = KernelAddr(kBytes - 4);
  WeDo(wr, 0, 8, WcStatus::kRemAccessErr);
}

TEST_F(RxeErrors, KernelRunsOutOfRetriesWhenOurQpIsGone) {
  ASSERT_OK(o_->qp.Destroy());
  KernelDoes(OnOurs(IBV_WR_RDMA_WRITE), 0, 8, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(RxeErrors, WeRunOutOfRetriesWhenTheKernelsQpIsGone) {
  k_->qp.reset();
  WeDo(OnKernels(WrOpcode::kRdmaWrite), 0, 8, WcStatus::kRetryExcErr);
}

}  // namespace
}  // namespace rdmad::testing
