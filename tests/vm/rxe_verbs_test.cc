// SEND, RDMA WRITE, RDMA READ and atomics between a queue pair of our soft device and one of the kernel's, over RC and UC,
// each in both directions and every byte checked.
#include <gtest/gtest.h>

#include <string>

#include "rdmad/rdmad.h"
#include "tests/vm/rxe_bed.h"
#include "tests/vm/rxe_verbs_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

struct Path {
  const char* name;
  Addresses addresses;
  Mtu mtu;
};

class RxeConnectedVerbs : public RxeVerbs, public ::testing::WithParamInterface<Path> {};

TEST_P(RxeConnectedVerbs, ReliableKernelSendsWritesAndReads) {
  Wire(QpType::kRc, GetParam().addresses, GetParam().mtu);
  ASSERT_FALSE(HasFatalFailure());
  KernelSendsAndWrites();
  for (const size_t bytes : kSizes) {
    Prepare(ours_->buffer.data() + kSink, kernel_->data(), bytes);
    KernelDoes(OnOurs(IBV_WR_RDMA_READ), 0, bytes);
    ExpectSame(kernel_->data(), ours_->buffer.data() + kSink, bytes, "READ");
  }
}

TEST_P(RxeConnectedVerbs, ReliableWeSendWriteAndRead) {
  Wire(QpType::kRc, GetParam().addresses, GetParam().mtu);
  ASSERT_FALSE(HasFatalFailure());
  WeSendAndWrite();
  for (const size_t bytes : kSizes) {
    Prepare(kernel_->data() + kSink, ours_->buffer.data(), bytes);
    WeDo(OnKernels(WrOpcode::kRdmaRead), 0, bytes);
    ExpectSame(ours_->buffer.data(), kernel_->data() + kSink, bytes, "READ");
  }
}

TEST_P(RxeConnectedVerbs, UnreliableKernelSendsAndWrites) {
  Wire(QpType::kUc, GetParam().addresses, GetParam().mtu);
  ASSERT_FALSE(HasFatalFailure());
  KernelSendsAndWrites();
}

TEST_P(RxeConnectedVerbs, UnreliableWeSendAndWrite) {
  Wire(QpType::kUc, GetParam().addresses, GetParam().mtu);
  ASSERT_FALSE(HasFatalFailure());
  WeSendAndWrite();
}

INSTANTIATE_TEST_SUITE_P(, RxeConnectedVerbs,
                         ::testing::Values(Path{"Ipv4", kIpv4, Mtu::k4096}, Path{"Ipv6SmallMtu", kIpv6, Mtu::k1024}),
                         [](const auto& test) { return std::string(test.param.name); });

// Eight bytes of the peer's memory, and where what they were arrives.
uint64_t& Word(std::byte* at) { return *reinterpret_cast<uint64_t*>(at); }
constexpr uint64_t kOld = 0x0123456789abcdef;
constexpr uint64_t kNew = 0xfedcba9876543210;

TEST_F(RxeVerbs, KernelsAtomicsOnOurMemory) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  uint64_t& target = Word(ours_->buffer.data() + kSink);
  uint64_t& before = Word(kernel_->data());
  target = kOld;
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic = {.remote_addr = OurAddr(kSink), .compare_add = kOld, .swap = kNew, .rkey = ours_->mr.rkey()};
  KernelDoes(wr, 0, 8);
  EXPECT_EQ(before, kOld);
  EXPECT_EQ(target, kNew);
  KernelDoes(wr, 0, 8);  // another value by now
  EXPECT_EQ(before, kNew);
  EXPECT_EQ(target, kNew);
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic.compare_add = 0x123456789;
  for (uint64_t i = 0; i < 20; ++i) {
    KernelDoes(wr, 0, 8);
    EXPECT_EQ(before, kNew + i * 0x123456789);
  }
  EXPECT_EQ(target, kNew + 20 * 0x123456789ull);
}

TEST_F(RxeVerbs, OurAtomicsOnTheKernelsMemory) {
  Wire(QpType::kRc, kIpv4);
  ASSERT_FALSE(HasFatalFailure());
  uint64_t& target = Word(kernel_->data() + kSink);
  uint64_t& before = Word(ours_->buffer.data());
  target = kOld;
  SendWr wr = OnKernels(WrOpcode::kCompareSwap);
  wr.compare_add = kOld;
  wr.swap = kNew;
  WeDo(wr, 0, 8);
  EXPECT_EQ(before, kOld);
  EXPECT_EQ(target, kNew);
  WeDo(wr, 0, 8);
  EXPECT_EQ(before, kNew);
  EXPECT_EQ(target, kNew);
  wr = OnKernels(WrOpcode::kFetchAdd);
  wr.compare_add = 0x123456789;
  for (uint64_t i = 0; i < 20; ++i) {
    WeDo(wr, 0, 8);
    EXPECT_EQ(before, kNew + i * 0x123456789);
  }
  EXPECT_EQ(target, kNew + 20 * 0x123456789ull);
}

}  // namespace
}  // namespace rdmad::testing
