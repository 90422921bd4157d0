// Memory windows of type 2, SEND with invalidate and local invalidate, between our soft device and the kernel's.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/rxe_verbs_bed.h"

namespace rdmad::testing {
namespace {

constexpr size_t kWindowBytes = 10000;

class RxeWindows : public RxeVerbs {
 protected:
  // Ours, over our sink.
  void WeBind() {
    ASSERT_OK_AND_ASSIGN(our_window_, MemoryWindow::Alloc(ours_->pd));
    ASSERT_OK(o_->qp.PostBind(1, &our_window_, ours_->mr, ours_->buffer.data() + kSink, kWindowBytes,
                              kAccessRemoteWrite | kAccessRemoteRead, kSendSignaled));
    Wc wc;
    ASSERT_OK(o_->sends.Wait({&wc, 1}, kPatience, WaitStyle::kPolled));
    ASSERT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_EQ(wc.opcode, WcOpcode::kBindMw);
  }
  void KernelUsesOurWindow() {
    Prepare(kernel_->data(), ours_->buffer.data() + kSink, kWindowBytes);
    KernelDoes(OnOurs(IBV_WR_RDMA_WRITE, our_window_.rkey()), 0, kWindowBytes);
    ExpectSame(ours_->buffer.data() + kSink, kernel_->data(), kWindowBytes, "WRITE by window");
    Prepare(ours_->buffer.data() + kSink, kernel_->data(), kWindowBytes);
    KernelDoes(OnOurs(IBV_WR_RDMA_READ, our_window_.rkey()), 0, kWindowBytes);
    ExpectSame(kernel_->data(), ours_->buffer.data() + kSink, kWindowBytes, "READ by window");
  }
  // The kernel's, over its sink.
  void KernelBinds() {
    kernel_window_.reset(ibv_alloc_mw(kernel_->pd.get(), IBV_MW_TYPE_2));
    ASSERT_NE(kernel_window_, nullptr) << std::strerror(errno);
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_BIND_MW;
    kernel_rkey_ = ibv_inc_rkey(kernel_window_->rkey);
    wr.bind_mw.mw = kernel_window_.get();
    wr.bind_mw.rkey = kernel_rkey_;
    wr.bind_mw.bind_info.mr = kernel_->mr.get();
    wr.bind_mw.bind_info.addr = KernelAddr(kSink);
    wr.bind_mw.bind_info.length = kWindowBytes;
    wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    ASSERT_OK_AND_ASSIGN(const ibv_wc wc, k_->Do(wr));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
  }
  void WeUseTheKernelsWindow() {
    Prepare(ours_->buffer.data(), kernel_->data() + kSink, kWindowBytes);
    WeDo(OnKernels(WrOpcode::kRdmaWrite, kernel_rkey_), 0, kWindowBytes);
    ExpectSame(kernel_->data() + kSink, ours_->buffer.data(), kWindowBytes, "WRITE by window");
    Prepare(kernel_->data() + kSink, ours_->buffer.data(), kWindowBytes);
    WeDo(OnKernels(WrOpcode::kRdmaRead, kernel_rkey_), 0, kWindowBytes);
    ExpectSame(ours_->buffer.data(), kernel_->data() + kSink, kWindowBytes, "READ by window");
  }

  // Gone before the kernel's PD.
  void TearDown() override {
    our_window_ = {};
    if (k_) k_->qp.reset();
    kernel_window_.reset();
    RxeVerbs::TearDown();
  }

  MemoryWindow our_window_;
  VerbsPtr<ibv_mw, ibv_dealloc_mw> kernel_window_;
  uint32_t kernel_rkey_ = 0;
};

TEST_F(RxeWindows, KernelUsesOurWindowAndInvalidatesItBySend) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  WeBind();
  ASSERT_FALSE(HasFatalFailure());
  KernelUsesOurWindow();
  WePostReceive(100);
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.invalidate_rkey = our_window_.rkey();
  KernelDoes(wr, 0, 100);
  ASSERT_OK_AND_ASSIGN(const Wc wc, o_->NextReceive());
  ASSERT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.flags & kWcWithInv, kWcWithInv);
  EXPECT_EQ(wc.imm_be, our_window_.rkey());
  KernelDoes(OnOurs(IBV_WR_RDMA_WRITE, our_window_.rkey()), 0, 1, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RxeWindows, WeInvalidateOurWindowUnderTheKernel) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  WeBind();
  ASSERT_FALSE(HasFatalFailure());
  KernelUsesOurWindow();
  ASSERT_OK(o_->qp.PostLocalInv(2, our_window_.rkey(), kSendSignaled));
  Wc wc;
  ASSERT_OK(o_->sends.Wait({&wc, 1}, kPatience, WaitStyle::kPolled));
  ASSERT_EQ(wc.status, WcStatus::kSuccess);
  KernelDoes(OnOurs(IBV_WR_RDMA_READ, our_window_.rkey()), 0, 1, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RxeWindows, TheKernelStaysWithinOurWindow) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  WeBind();
  ASSERT_FALSE(HasFatalFailure());
  KernelDoes(OnOurs(IBV_WR_RDMA_WRITE, our_window_.rkey()), 0, kWindowBytes + 1, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RxeWindows, WeUseTheKernelsWindowAndInvalidateItBySend) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  KernelBinds();
  ASSERT_FALSE(HasFatalFailure());
  WeUseTheKernelsWindow();
  ASSERT_OK(k_->PostReceive(*kernel_, 0, 100));
  SendWr wr;
  wr.opcode = WrOpcode::kSendWithInv;
  wr.imm_be = kernel_rkey_;
  WeDo(wr, 0, 100);
  ASSERT_OK_AND_ASSIGN(const ibv_wc wc, k_->NextReceive());
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
  // rxe (Linux 6.1) says so by the number that the flag has inside the kernel.
  EXPECT_NE(wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK), 0u);
  EXPECT_EQ(wc.invalidated_rkey, kernel_rkey_);
  WeDo(OnKernels(WrOpcode::kRdmaWrite, kernel_rkey_), 0, 1, WcStatus::kRemAccessErr);
}

TEST_F(RxeWindows, TheKernelInvalidatesItsWindowUnderUs) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  KernelBinds();
  ASSERT_FALSE(HasFatalFailure());
  WeUseTheKernelsWindow();
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.invalidate_rkey = kernel_rkey_;
  ASSERT_OK_AND_ASSIGN(const ibv_wc wc, k_->Do(wr));
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
  WeDo(OnKernels(WrOpcode::kRdmaRead, kernel_rkey_), 0, 1, WcStatus::kRemAccessErr);
}

}  // namespace
}  // namespace rdmad::testing
