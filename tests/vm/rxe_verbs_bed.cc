#include "tests/vm/rxe_verbs_bed.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <string>
#include <tuple>
#include <utility>

#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

void Fill(std::byte* at, size_t bytes, size_t seed) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(i * 31 + (i >> 8) + seed);
}

}  // namespace

void RxeVerbs::Open(QpType type, const Addresses& addresses) {
  ASSERT_OK_AND_ASSIGN(kernel_, KernelHost::Open("rxeA", addresses.kernel, kBytes));
  ASSERT_OK_AND_ASSIGN(OurHost host, OurHost::Open(client(), pool(), addresses.ours, kBytes));
  ours_.emplace(std::move(host));
  ASSERT_OK_AND_ASSIGN(KernelQp theirs, KernelQp::Open(*kernel_, static_cast<ibv_qp_type>(type)));
  k_.emplace(std::move(theirs));
  ASSERT_OK_AND_ASSIGN(OurQp our_qp, OurQp::Open(client(), *ours_, type));
  o_.emplace(std::move(our_qp));
  o_->rnr_retry = k_->rnr_retry = rnr_retries_;
  o_->route = k_->route = route_;
}

void RxeVerbs::Wire(QpType type, const Addresses& addresses, Mtu mtu) {
  Open(type, addresses);
  if (HasFatalFailure()) return;
  mtu = OnTheBed(mtu);
  ASSERT_OK(o_->Connect(*ours_, k_->Describe(*kernel_), mtu));
  ASSERT_OK(k_->Connect(*kernel_, o_->Describe(*ours_), static_cast<ibv_mtu>(mtu)));
}

void RxeVerbs::TearDown() {
  o_.reset();
  k_.reset();
  ours_.reset();
  kernel_.reset();
  RxeInterop::TearDown();
}

void RxeVerbs::KernelDoes(ibv_send_wr wr, size_t offset, size_t bytes, ibv_wc_status expected) {
  ibv_sge sge = kernel_->At(offset, bytes);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ASSERT_OK_AND_ASSIGN(const ibv_wc wc, k_->Do(wr));
  EXPECT_EQ(wc.status, expected) << ibv_wc_status_str(wc.status) << ", opcode " << wr.opcode << ", " << bytes
                                 << " bytes";
}

void RxeVerbs::WeDo(SendWr wr, size_t offset, size_t bytes, WcStatus expected) {
  const Sge sge = ours_->At(offset, bytes);
  wr.sges = {&sge, 1};
  ASSERT_OK_AND_ASSIGN(const Wc wc, o_->Do(wr));
  EXPECT_EQ(wc.status, expected) << WcStatusString(wc.status) << ", opcode " << static_cast<int>(wr.opcode) << ", "
                                 << bytes << " bytes";
}

ibv_send_wr RxeVerbs::OnOurs(ibv_wr_opcode opcode, uint32_t rkey) const {
  ibv_send_wr wr = {};
  wr.opcode = opcode;
  wr.imm_data = htonl(kImm);
  wr.wr.rdma = {OurAddr(kSink), rkey};
  return wr;
}

SendWr RxeVerbs::OnKernels(WrOpcode opcode, uint32_t rkey) const {
  SendWr wr;
  wr.opcode = opcode;
  wr.imm_be = htonl(kImm);
  wr.remote_addr = KernelAddr(kSink);
  wr.rkey = rkey;
  return wr;
}

void RxeVerbs::WePostReceive(size_t bytes) {
  ASSERT_OK(o_->qp.PostRecv(7, ours_->buffer.data() + kSink, bytes, &ours_->mr));
  if (!reliable()) {
    ASSERT_OK(o_->AwaitPosted());
  }
}

bool RxeVerbs::WeReceive(size_t bytes, WcOpcode opcode, uint32_t flags) {
  const absl::StatusOr<Wc> wc = o_->NextReceive(patience());
  if (!reliable() && absl::IsDeadlineExceeded(wc.status())) return false;
  EXPECT_OK(wc);
  if (!wc.ok()) return false;
  EXPECT_EQ(wc->status, WcStatus::kSuccess) << WcStatusString(wc->status);
  EXPECT_EQ(wc->byte_len, bytes);
  EXPECT_EQ(wc->opcode, opcode);
  EXPECT_EQ(wc->flags & (kWcWithImm | kWcWithInv), flags);
  if (flags == kWcWithImm) {
    EXPECT_EQ(wc->imm_be, htonl(kImm));
  }
  return true;
}

bool RxeVerbs::KernelReceives(size_t bytes, ibv_wc_opcode opcode, unsigned flags) {
  const absl::StatusOr<ibv_wc> wc = k_->NextReceive(patience());
  if (!reliable() && absl::IsDeadlineExceeded(wc.status())) return false;
  EXPECT_OK(wc);
  if (!wc.ok()) return false;
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc->status);
  // The length of a write is the kernel's own affair: rxe says it, too.
  EXPECT_EQ(wc->byte_len, bytes);
  EXPECT_EQ(wc->opcode, opcode);
  EXPECT_EQ(wc->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), flags);
  if (flags == IBV_WC_WITH_IMM) {
    EXPECT_EQ(wc->imm_data, htonl(kImm));
  }
  return true;
}

void RxeVerbs::ExpectAsyncEventOfOurQp(AsyncEventType expected) {
  Client events = client();
  while (true) {
    ASSERT_OK_AND_ASSIGN(const AsyncEvent event, events.GetAsyncEvent(kPatience));
    if (event.handle != o_->qp.handle() || (event.type == kAsyncCommEst && expected != kAsyncCommEst)) continue;
    EXPECT_EQ(event.type, expected) << AsyncEventString(event.type);
    return;
  }
}

void RxeVerbs::UntilItArrives(const char* what, size_t bytes, const std::function<bool()>& once) {
  const int tries = reliable() ? 1 : kUnreliableTries;
  for (int i = 0; i < tries; ++i) {
    if (once() || HasFailure()) return;
    std::cerr << what << " of " << bytes << " bytes is lost. What rdmad has counted by now:\n" << WhatRdmadCounted();
  }
  FAIL() << what << " of " << bytes << " bytes does not arrive";
}

void RxeVerbs::Prepare(std::byte* source, std::byte* sink, size_t bytes) {
  Fill(source, bytes, ++seed_);
  std::memset(sink, 0xee, bytes + 1);
}

void RxeVerbs::ExpectSame(const std::byte* sink, const std::byte* source, size_t bytes, const char* what) {
  EXPECT_EQ(std::memcmp(sink, source, bytes), 0) << what << " of " << bytes << " bytes";
  EXPECT_EQ(sink[bytes], std::byte{0xee}) << what << " of " << bytes << " bytes wrote more";
}

bool RxeVerbs::WriteArrived(const std::byte* sink, const std::byte* source, size_t bytes) {
  if (reliable() || std::memcmp(sink, source, bytes) == 0) {
    ExpectSame(sink, source, bytes, "WRITE");
    return true;
  }
  const std::byte* const end = std::mismatch(sink, sink + bytes, source).first;
  EXPECT_TRUE(std::all_of(end, sink + bytes + 1, [](std::byte b) { return b == std::byte{0xee}; }))
      << "WRITE of " << bytes << " bytes is torn at " << end - sink;
  return false;
}

void RxeVerbs::KernelSendsAndWrites() {
  for (const size_t bytes : kSizes) {
    std::byte* const sink = ours_->buffer.data() + kSink;
    for (const auto& [opcode, takes_receive, imm, what] :
         {std::tuple{IBV_WR_SEND, true, false, "SEND"}, std::tuple{IBV_WR_SEND_WITH_IMM, true, true, "SEND with imm"},
          std::tuple{IBV_WR_RDMA_WRITE, false, false, "WRITE"},
          std::tuple{IBV_WR_RDMA_WRITE_WITH_IMM, true, true, "WRITE with imm"}}) {
      // A write over UC tells nobody when it is there; what comes after it does.
      const bool tells = takes_receive || reliable();
      if (takes_receive || !tells) WePostReceive(tells ? bytes : 0);
      UntilItArrives(what, bytes, [&, opcode = opcode, takes_receive = takes_receive, imm = imm, what = what] {
        Prepare(kernel_->data(), sink, bytes);
        KernelDoes(OnOurs(opcode), 0, bytes);
        if (!takes_receive) {
          if (!tells) {
            KernelDoes(OnOurs(IBV_WR_SEND), 0, 0);
            if (!WeReceive(0, WcOpcode::kRecv, 0)) return false;
          }
          if (WriteArrived(sink, kernel_->data(), bytes)) return true;
          WePostReceive(0);  // that one is used
          return false;
        }
        const bool writes = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        if (!WeReceive(bytes, writes ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv, imm ? uint32_t{kWcWithImm} : 0)) {
          return false;
        }
        ExpectSame(sink, kernel_->data(), bytes, what);
        return true;
      });
      if (HasFailure()) return;
    }
  }
}

void RxeVerbs::WeSendAndWrite() {
  for (const size_t bytes : kSizes) {
    std::byte* const sink = kernel_->data() + kSink;
    for (const auto& [opcode, takes_receive, imm, what] :
         {std::tuple{WrOpcode::kSend, true, false, "SEND"}, std::tuple{WrOpcode::kSendWithImm, true, true, "SEND with imm"},
          std::tuple{WrOpcode::kRdmaWrite, false, false, "WRITE"},
          std::tuple{WrOpcode::kRdmaWriteWithImm, true, true, "WRITE with imm"}}) {
      const bool tells = takes_receive || reliable();
      if (takes_receive || !tells) {
        ASSERT_OK(k_->PostReceive(*kernel_, kSink, tells ? bytes : 0));
      }
      UntilItArrives(what, bytes, [&, opcode = opcode, takes_receive = takes_receive, imm = imm, what = what] {
        Prepare(ours_->buffer.data(), sink, bytes);
        WeDo(OnKernels(opcode), 0, bytes);
        if (!takes_receive) {
          if (!tells) {
            WeDo(OnKernels(WrOpcode::kSend), 0, 0);
            if (!KernelReceives(0, IBV_WC_RECV, 0)) return false;
          }
          if (WriteArrived(sink, ours_->buffer.data(), bytes)) return true;
          EXPECT_OK(k_->PostReceive(*kernel_, kSink, 0));  // that one is used
          return false;
        }
        const bool writes = opcode == WrOpcode::kRdmaWriteWithImm;
        if (!KernelReceives(bytes, writes ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, imm ? unsigned{IBV_WC_WITH_IMM} : 0)) {
          return false;
        }
        ExpectSame(sink, ours_->buffer.data(), bytes, what);
        return true;
      });
      if (HasFailure()) return;
    }
  }
}

}  // namespace rdmad::testing
