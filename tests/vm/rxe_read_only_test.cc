// Memory that may only be read (CASES 22), of either side: as the source of a send, a write and a read it carries its bytes; a
// peer that writes to it gets a remote access error, and nothing is changed.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/rxe_verbs_bed.h"

namespace rdmad::testing {
namespace {

constexpr size_t kBytesRead = 5000;

class RxeReadOnly : public RxeVerbs {
 protected:
  void SetUp() override {
    RxeVerbs::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    Wire(QpType::kRc, kIpv4);
  }
};

TEST_F(RxeReadOnly, OursIsReadByTheKernelAndNotWritten) {
  std::byte* const source = ours_->buffer.data();
  ASSERT_OK_AND_ASSIGN(const MemoryRegion readable, ours_->pd.Reg(source, kBytesRead, kAccessRemoteRead));
  Prepare(source, kernel_->data() + kSink, kBytesRead);
  ibv_send_wr wr = OnOurs(IBV_WR_RDMA_READ, readable.rkey());
  wr.wr.rdma.remote_addr = OurAddr(0);
  KernelDoes(wr, kSink, kBytesRead);
  ExpectSame(kernel_->data() + kSink, source, kBytesRead, "READ");
  std::memset(kernel_->data(), 0xdd, 8);
  const std::vector<std::byte> before(source, source + kBytesRead);
  wr.opcode = IBV_WR_RDMA_WRITE;
  KernelDoes(wr, 0, 8, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(std::memcmp(source, before.data(), kBytesRead), 0);
}

TEST_F(RxeReadOnly, OursWithoutAnyRightIsSentAndWrittenFromAndNotReadByTheKernel) {
  std::byte* const source = ours_->buffer.data();
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region, ours_->pd.Reg(source, kBytesRead, 0));
  const Sge sge = {OurAddr(0), kBytesRead, region.lkey()};
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kSend}) {
    ASSERT_OK(k_->PostReceive(*kernel_, kSink, kBytesRead));
    Prepare(source, kernel_->data() + kSink, kBytesRead);
    SendWr wr = OnKernels(opcode);
    wr.sges = {&sge, 1};
    ASSERT_OK_AND_ASSIGN(const Wc wc, o_->Do(wr));
    ASSERT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
    if (opcode == WrOpcode::kSend) ExpectKernelReceived(kBytesRead, IBV_WC_RECV, 0);
    ExpectSame(kernel_->data() + kSink, source, kBytesRead, "SEND or WRITE");
  }
  ibv_send_wr wr = OnOurs(IBV_WR_RDMA_READ, region.rkey());
  wr.wr.rdma.remote_addr = OurAddr(0);
  KernelDoes(wr, 0, 8, IBV_WC_REM_ACCESS_ERR);
}

// A file that the kernel's side has mapped without the right to write.
class RxeReadOnlyFile : public RxeReadOnly {
 protected:
  void SetUp() override {
    RxeReadOnly::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const UniqueFd file(::memfd_create("read only", MFD_CLOEXEC));
    std::vector<std::byte> bytes(kBytesRead);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
    ASSERT_EQ(::write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    // Not a shared one: of those, Linux 6.1 takes none that cannot be written to.
    map_ = static_cast<std::byte*>(::mmap(nullptr, kBytesRead, PROT_READ, MAP_PRIVATE, file.get(), 0));
    ASSERT_NE(static_cast<void*>(map_), MAP_FAILED);
    mr_.reset(ibv_reg_mr(kernel_->pd.get(), map_, kBytesRead, IBV_ACCESS_REMOTE_READ));
    ASSERT_NE(mr_, nullptr) << std::strerror(errno);
  }
  void TearDown() override {
    mr_.reset();
    if (map_ != nullptr) ::munmap(map_, kBytesRead);
    RxeReadOnly::TearDown();
  }
  void KernelDoesFromIt(ibv_wr_opcode opcode) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(map_), kBytesRead, mr_->lkey};
    ibv_send_wr wr = OnOurs(opcode);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ASSERT_OK_AND_ASSIGN(const ibv_wc wc, k_->Do(wr));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
  }

  std::byte* map_ = nullptr;
  VerbsPtr<ibv_mr, ibv_dereg_mr> mr_;
};

TEST_F(RxeReadOnlyFile, TheKernelsIsReadByUsAndNotWritten) {
  SendWr wr = OnKernels(WrOpcode::kRdmaRead, mr_->rkey);
  wr.remote_addr = reinterpret_cast<uint64_t>(map_);
  WeDo(wr, kSink, kBytesRead);
  EXPECT_EQ(std::memcmp(ours_->buffer.data() + kSink, map_, kBytesRead), 0);
  wr.opcode = WrOpcode::kRdmaWrite;
  WeDo(wr, 0, 8, WcStatus::kRemAccessErr);
  EXPECT_EQ(map_[1], std::byte{7});
}

TEST_F(RxeReadOnlyFile, TheKernelsIsSentAndWrittenFrom) {
  std::byte* const sink = ours_->buffer.data() + kSink;
  std::memset(sink, 0xee, kBytesRead + 1);
  KernelDoesFromIt(IBV_WR_RDMA_WRITE);
  ExpectSame(sink, map_, kBytesRead, "WRITE");
  std::memset(sink, 0xee, kBytesRead + 1);
  WePostReceive(kBytesRead);
  KernelDoesFromIt(IBV_WR_SEND);
  ExpectWeReceived(kBytesRead, WcOpcode::kRecv, 0);
  ExpectSame(sink, map_, kBytesRead, "SEND");
}

TEST_F(RxeReadOnlyFile, TheKernelsCannotBeRegisteredForWriting) {
  const VerbsPtr<ibv_mr, ibv_dereg_mr> mr(ibv_reg_mr(kernel_->pd.get(), map_, kBytesRead, IBV_ACCESS_LOCAL_WRITE));
  EXPECT_EQ(mr, nullptr);
  EXPECT_EQ(errno, EFAULT);
}

}  // namespace
}  // namespace rdmad::testing
