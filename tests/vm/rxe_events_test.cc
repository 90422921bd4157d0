// What wakes a receiver, and what a bad network does to the operations, between our soft device and the kernel's.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>

#include "absl/time/time.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/rxe_verbs_bed.h"

namespace rdmad::testing {
namespace {

bool IsReadable(int fd, absl::Duration within) {
  pollfd wait = {fd, POLLIN, 0};
  return ::poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(within))) == 1;
}

constexpr absl::Duration kSilence = absl::Milliseconds(300);
constexpr size_t kSeveralPackets = 20000;

using RxeEvents = RxeVerbs;

TEST_F(RxeEvents, OnlyOurSolicitedMessagesWakeTheKernel) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_EQ(ibv_req_notify_cq(k_->receives.get(), 1), 0);
  for (const bool solicited : {false, true}) {
    ASSERT_OK(k_->PostReceive(*kernel_, kSink, 100));
    SendWr wr = OnKernels(WrOpcode::kSend);
    if (solicited) wr.flags |= kSendSolicited;
    WeDo(wr, 0, 100);
    EXPECT_EQ(IsReadable(k_->channel->fd, solicited ? kPatience : kSilence), solicited);
    ExpectKernelReceived(100, IBV_WC_RECV, 0);
  }
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(k_->channel.get(), &cq, &context), 0);
  EXPECT_EQ(cq, k_->receives.get());
  ibv_ack_cq_events(cq, 1);
}

TEST_F(RxeEvents, OnlyTheKernelsSolicitedMessagesWakeUs) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  o_->receives.RequestNotify(/*solicited_only=*/true);
  for (const bool solicited : {false, true}) {
    WePostReceive(100);
    ibv_send_wr wr = OnOurs(IBV_WR_SEND);
    if (solicited) wr.send_flags |= IBV_SEND_SOLICITED;
    KernelDoes(wr, 0, 100);
    EXPECT_EQ(IsReadable(o_->channel.fd(), solicited ? kPatience : kSilence), solicited);
    ExpectWeReceived(100, WcOpcode::kRecv, 0);
  }
  ASSERT_OK_AND_ASSIGN(CompletionQueue cq, o_->channel.GetEvent());
  EXPECT_EQ(cq, o_->receives);
  cq.AckEvents();
}

// No message of the connection manager's says it: data does.
TEST_F(RxeEvents, TheKernelsDataEstablishesOurQp) {
  Open(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK(o_->ToRtr(*ours_, k_->Describe(*kernel_), Mtu::k1024));
  ASSERT_OK(k_->Connect(*kernel_, o_->Describe(*ours_), IBV_MTU_1024));
  Prepare(kernel_->data(), ours_->buffer.data() + kSink, kSeveralPackets);
  KernelDoes(OnOurs(IBV_WR_RDMA_WRITE), 0, kSeveralPackets);
  ExpectSame(ours_->buffer.data() + kSink, kernel_->data(), kSeveralPackets, "WRITE");
  ExpectAsyncEventOfOurQp(kAsyncCommEst);
  ASSERT_OK(o_->ToRts());
  WeDo(OnKernels(WrOpcode::kRdmaWrite), 0, kSeveralPackets);
}

// Reads and atomics where packets are lost and doubled: each once, every byte right.
constexpr char kBad[] = "loss 3% duplicate 3%";
constexpr int kRounds = 25;

TEST_F(RxeEvents, KernelsReadsAndAtomicsOnABadNetwork) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  const BadNetwork network(kBad);
  uint64_t before = 0;
  ibv_send_wr add = {};
  add.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  add.wr.atomic = {.remote_addr = OurAddr(kBytes - 8), .compare_add = 1, .swap = 0, .rkey = ours_->mr.rkey()};
  std::memset(ours_->buffer.data() + kBytes - 8, 0, 8);
  for (uint64_t i = 0; i < kRounds && !HasFatalFailure(); ++i) {
    KernelDoes(add, 0, 8);
    std::memcpy(&before, kernel_->data(), 8);
    ASSERT_EQ(before, i);
    Prepare(ours_->buffer.data() + kSink, kernel_->data(), kSeveralPackets);
    KernelDoes(OnOurs(IBV_WR_RDMA_READ), 0, kSeveralPackets);
    ExpectSame(kernel_->data(), ours_->buffer.data() + kSink, kSeveralPackets, "READ");
  }
  EXPECT_GT(network.lost(), 0);
}

TEST_F(RxeEvents, OurReadsAndAtomicsOnABadNetwork) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  const BadNetwork network(kBad);
  uint64_t before = 0;
  SendWr add = OnKernels(WrOpcode::kFetchAdd);
  add.remote_addr = KernelAddr(kBytes - 8);
  add.compare_add = 1;
  std::memset(kernel_->data() + kBytes - 8, 0, 8);
  for (uint64_t i = 0; i < kRounds && !HasFatalFailure(); ++i) {
    WeDo(add, 0, 8);
    std::memcpy(&before, ours_->buffer.data(), 8);
    ASSERT_EQ(before, i);
    Prepare(kernel_->data() + kSink, ours_->buffer.data(), kSeveralPackets);
    WeDo(OnKernels(WrOpcode::kRdmaRead), 0, kSeveralPackets);
    ExpectSame(ours_->buffer.data(), kernel_->data() + kSink, kSeveralPackets, "READ");
  }
  EXPECT_GT(network.lost(), 0);
}

// Unreliable: a message of which a packet is lost is lost; what arrives is whole.
TEST_F(RxeEvents, KernelsUnreliableMessagesArriveWholeOrNotAtAll) {
  Wire(QpType::kUc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  const BadNetwork network("loss 10%");
  int arrived = 0;
  WePostReceive(kSeveralPackets);
  for (int i = 0; i < kRounds; ++i) {
    Prepare(kernel_->data(), ours_->buffer.data() + kSink, kSeveralPackets);
    KernelDoes(OnOurs(IBV_WR_SEND), 0, kSeveralPackets);
    Wc wc;
    const auto count = o_->receives.Wait({&wc, 1}, kSilence, WaitStyle::kPolled);
    if (!count.ok()) continue;
    ASSERT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
    ASSERT_EQ(wc.byte_len, kSeveralPackets);
    ExpectSame(ours_->buffer.data() + kSink, kernel_->data(), kSeveralPackets, "SEND");
    ++arrived;
    WePostReceive(kSeveralPackets);
  }
  EXPECT_GT(arrived, 0);
  EXPECT_LT(arrived, kRounds);
}

}  // namespace
}  // namespace rdmad::testing
