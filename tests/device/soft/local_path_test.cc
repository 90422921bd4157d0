// What is particular to two QPs on one transport: slices, fairness, going over to the network and
// back.
#include <gtest/gtest.h>

#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

BedOptions Local() {
  BedOptions options;
  options.path = Path::kLocal;
  return options;
}

TEST(LocalPath, LongMessageIsCopiedInSlicesOfTheBudget) {
  BedOptions options = Local();
  options.config.qp_budget_bytes = options.config.turn_budget_bytes = 64 * 1024;
  Bed bed(options);
  bed.Fill(bed.a, 0, 1 << 20);
  const device::Sge sge = bed.a.Sge(0, 1 << 20);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  int turns = 0;
  while (bed.a.sends.all.empty() && turns < 1000) {
    EXPECT_EQ(bed.a.transport->NextDeadline(1), 1) << "work is left over";
    bed.a.transport->DoWork(1);
    ++turns;
  }
  EXPECT_GE(turns, 16);
  EXPECT_LE(turns, 20);
  EXPECT_TRUE(bed.Same(0, 0, 1 << 20));
}

// Whatever is left of a budget, down to less than a word.
TEST(LocalPath, EveryOperationIsRightInSlicesOfAnySize) {
  constexpr uint32_t kBytes = 1000;
  constexpr uint64_t kLanding = 5000;
  for (const uint32_t budget : {1u, 3u, 7u, 8u, 9u, 255u, 999u}) {
    SCOPED_TRACE(budget);
    BedOptions options = Local();
    options.config.qp_budget_bytes = options.config.turn_budget_bytes = budget;
    Bed bed(options);
    bed.Fill(bed.a, 0, kBytes, 1);
    bed.Fill(bed.b, kLanding, kBytes, 2);
    ASSERT_EQ(bed.PostRecv(bed.b, 1, 2000, kBytes), PostResult::kOk);
    const device::Sge out = bed.a.Sge(0, kBytes);
    const device::Sge in = bed.a.Sge(kLanding, kBytes);
    const device::Sge found[] = {bed.a.Sge(8000, 8), bed.a.Sge(8008, 8)};
    device::SendWr add = bed.Wr(4, WrOpcode::kFetchAdd, &found[0], 9000);
    add.compare_add = 5;
    device::SendWr swap = bed.Wr(5, WrOpcode::kCompareSwap, &found[1], 9000);
    swap.compare_add = 5;
    swap.swap = 77;
    for (const device::SendWr& wr :
         {bed.Wr(1, WrOpcode::kSend, &out), bed.Wr(2, WrOpcode::kRdmaWrite, &out),
          bed.Wr(3, WrOpcode::kRdmaRead, &in, kLanding), add, swap}) {
      ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    }
    ASSERT_TRUE(bed.Await(bed.a.sends, 5));
    for (const device::Wc& wc : bed.a.sends.all) EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_TRUE(bed.Same(0, 2000, kBytes));
    EXPECT_TRUE(bed.Same(0, 0, kBytes));
    EXPECT_TRUE(bed.Same(kLanding, kLanding, kBytes));
    const auto word = [](const Endpoint& endpoint, uint64_t offset) {
      uint64_t value;
      std::memcpy(&value, endpoint.memory.data() + offset, sizeof(value));
      return value;
    };
    EXPECT_EQ(word(bed.a, 8000), 0u);
    EXPECT_EQ(word(bed.a, 8008), 5u) << "the addition was executed more than once";
    EXPECT_EQ(word(bed.b, 9000), 77u);
  }
}

TEST(LocalPath, SmallMessagesDoNotWaitForALargeOne) {
  BedOptions options = Local();
  options.config.turn_budget_bytes = options.config.qp_budget_bytes = 64 * 1024;
  Bed bed(options);
  const device::Sge large = bed.a.Sge(0, 4 << 20);
  const device::Sge small = bed.b.Sge(0, 8);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &large)), PostResult::kOk);
  bed.a.transport->DoWork(1);
  device::SendWr wr = bed.Wr(2, WrOpcode::kRdmaWrite, &small);
  wr.rkey = bed.a.mr->rkey();
  ASSERT_EQ(bed.Post(bed.b, wr), PostResult::kOk);
  bed.a.transport->DoWork(1);
  bed.a.transport->DoWork(1);
  EXPECT_EQ(bed.b.sends.all.size(), 1u);
  EXPECT_TRUE(bed.a.sends.all.empty());
}

TEST(LocalPath, MessagesThatBeganOnTheNetworkAreFollowedByLocalOnes) {
  BedOptions options = Local();
  options.connect = false;
  options.timeout = 10;
  Bed bed(options);
  bed.ToRts(bed.a, bed.b, options.psn_a, options.psn_b);
  bed.ToInit(bed.b);
  const device::Sge sge = bed.a.Sge(0, 3000);
  bed.Fill(bed.a, 0, 3000);
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  }
  bed.network.Pass(1'000'000);
  EXPECT_FALSE(bed.network.sent().empty()) << "no peer that receives: the network is tried";
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_FALSE(bed.a.qp->same_daemon());
  bed.ToRtr(bed.b, bed.a, options.psn_a);
  EXPECT_TRUE(bed.a.qp->same_daemon());
  ASSERT_TRUE(bed.Await(bed.a.sends, 3));
  for (const auto& wc : bed.a.sends.all) EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_TRUE(bed.Same(0, 0, 3000));
  // Those that were under way stay on the network, later ones do not.
  const size_t packets = bed.network.sent().size();
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(4, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 4));
  EXPECT_EQ(bed.network.sent().size(), packets);
  EXPECT_EQ(bed.Counter(bed.a, "local_messages"), 1u);
  EXPECT_EQ(bed.a.qp->Query().sq_psn, bed.b.qp->Query().rq_psn);
}

TEST(LocalPath, AddressThatGoesAwayInAMessageSendsItOverTheNetwork) {
  BedOptions options = Local();
  options.config.qp_budget_bytes = options.config.turn_budget_bytes = 16 * 1024;
  Bed bed(options);
  bed.Fill(bed.a, 0, 500'000);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 500'000), PostResult::kOk);
  ASSERT_EQ(bed.PostRecv(bed.b, 2, 500'000, 500'000), PostResult::kOk);
  const device::Sge sge = bed.a.Sge(0, 500'000);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  for (int i = 0; i < 5; ++i) bed.network.Step();
  ASSERT_TRUE(bed.a.sends.all.empty());
  bed.a.transport->RemoveLocalAddress(bed.b.address);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  ASSERT_EQ(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all[0].wr_id, 1u) << "the receive that the local half had taken";
  EXPECT_EQ(bed.b.receives.all[0].byte_len, 500'000u);
  EXPECT_TRUE(bed.Same(0, 0, 500'000));
  // And back.
  bed.a.transport->AddLocalAddress(bed.b.address);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kSend, &sge)), PostResult::kOk);
  const size_t packets = bed.network.sent().size();
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
  EXPECT_EQ(bed.network.sent().size(), packets);
  EXPECT_TRUE(bed.Same(0, 500'000, 500'000));
}

TEST(LocalPath, QpConnectedToItself) {
  BedOptions options = Local();
  options.connect = false;
  Bed bed(options);
  bed.ToRts(bed.a, bed.a, 5, 5);
  bed.Fill(bed.a, 0, 1000);
  ASSERT_EQ(bed.PostRecv(bed.a, 9, 500, 1000), PostResult::kOk);  // overlaps the source
  const std::vector<std::byte> before(bed.a.memory.begin(), bed.a.memory.begin() + 1000);
  const device::Sge sge = bed.a.Sge(0, 1000);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_EQ(bed.a.receives.all.size(), 1u);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), bed.a.memory.begin() + 500));
  // And fails as a whole.
  ASSERT_EQ(bed.PostRecv(bed.a, 10, 500, 10), PostResult::kOk);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kSend, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
  EXPECT_EQ(bed.a.sends.all[1].status, WcStatus::kRemInvReqErr);
  ASSERT_EQ(bed.a.receives.all.size(), 2u);
  EXPECT_EQ(bed.a.receives.all[1].status, WcStatus::kLocLenErr);
}

TEST(LocalPath, ManyPairsShareTheTurns) {
  BedOptions options = Local();
  options.config.qp_budget_bytes = 16 * 1024;
  options.config.turn_budget_bytes = 64 * 1024;
  Bed bed(options);
  // Pairs of further QPs on the same transport.
  constexpr uint32_t kPairs = 20;
  std::vector<std::unique_ptr<Endpoint>> extra;
  std::vector<std::unique_ptr<SoftQp>> qps;
  CompletionLog done;
  SoftCq cq(1024, &done);
  const auto make = [&](uint32_t qpn, const IpAddress& address) {
    SoftQpInit init;
    init.qpn = qpn;
    init.pd = &bed.a.pd;
    init.init.send_cq = init.init.recv_cq = &cq;
    init.init.signal_all = true;
    init.cap = {4, 4, 1, 1, 0};
    init.source = [address](uint32_t, SourceAddress* out) {
      out->address = address;
      return true;
    };
    auto qp = SoftQp::Create(*bed.a.transport, init);
    ASSERT_TRUE(qp.ok());
    (*qp)->Activate(0);
    qps.push_back(std::move(*qp));
  };
  for (uint32_t i = 0; i < kPairs; ++i) {
    make(1000 + 2 * i, bed.a.address);
    make(1001 + 2 * i, bed.a.address);
  }
  for (uint32_t i = 0; i < 2 * kPairs; ++i) {
    Endpoint from, to;
    from.qp.swap(qps[i]);
    to.qp.swap(qps[i ^ 1]);
    to.address = bed.a.address;
    bed.ToRts(from, to, 0, 0);
    from.qp.swap(qps[i]);
    to.qp.swap(qps[i ^ 1]);
  }
  const device::Sge sge = bed.a.Sge(0, 256 * 1024);
  for (uint32_t i = 0; i < kPairs; ++i) {
    device::SendWr wr = bed.Wr(i, WrOpcode::kRdmaWrite, &sge, 1 << 20);
    wr.rkey = bed.a.mr->rkey();
    ASSERT_EQ(qps[2 * i]->PostSend(wr, 0), PostResult::kOk);
  }
  // All of them advance together: the first is done only when the last is nearly so.
  int turns = 0;
  while (done.all.empty()) {
    bed.a.transport->DoWork(1);
    ASSERT_LT(++turns, 10'000);
  }
  int more = 0;
  while (done.all.size() < kPairs) {
    bed.a.transport->DoWork(1);
    ASSERT_LT(++more, 10'000);
  }
  EXPECT_LT(more, turns / 4);
  for (uint32_t i = 0; i < kPairs; ++i) EXPECT_EQ(done.all[i].wr_id, i);
  for (auto& qp : qps) qp->Deactivate(0);
}

}  // namespace
}  // namespace rdmad::soft
