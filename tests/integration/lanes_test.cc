// One application on several engines: CQs of several completion vectors, and what their QPs share.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/shm/doorbell.h"
#include "tests/integration/application.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kEngines = 3;
constexpr char kThree[] = "[engine]\ncount = 3\n";
constexpr uint32_t kEngineMask = 15;  // of a soft device's QPN: the engine that it lives on
constexpr size_t kHalf = WiredEnd::kMemoryBytes / 2;
constexpr uint32_t kRights =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessMwBind;

// "active" of daemon 0 uses all vectors, and so does its peer, "passive" of daemon 1.
class LanesTest : public LoopbackTest {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(StartDaemon(i, {.log_level = "info", .more_config = kThree}));
    }
    ASSERT_OK_AND_ASSIGN(Client active, AttachTo(Daemon(0), "active"));
    ASSERT_OK_AND_ASSIGN(Client passive, AttachTo(Daemon(1), "passive"));
    active_.emplace(active);
    passive_.emplace(passive);
  }

  // Ends on one vector at either side; all of a side are in the PD of the first.
  struct Pair {
    WiredEnd a;
    WiredEnd b;
  };
  void MakePairs() {
    for (uint32_t vector = 0; vector < kEngines; ++vector) {
      WiredOptions a_options{.comp_vector = vector};
      // Another one on the other side, so that packets change engines.
      WiredOptions b_options{.comp_vector = (vector + 1) % kEngines};
      if (vector != 0) {
        a_options.pd = &pairs_[0].a.pd;
        b_options.pd = &pairs_[0].b.pd;
      }
      ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(*active_, Ipv4(0), a_options));
      ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(*passive_, Ipv4(1), b_options));
      ASSERT_OK(Wire(a, b));
      pairs_.push_back({std::move(a), std::move(b)});
    }
  }
  static WcStatus NextStatus(CompletionQueue& cq) {
    const absl::StatusOr<Wc> wc = WaitForWc(cq, absl::Seconds(30));
    EXPECT_OK(wc);
    return wc.ok() ? wc->status : WcStatus::kGeneralErr;
  }
  // Writes `region` of the active side into the passive side's `target`, by the pair's QP.
  static WcStatus Write(Pair& pair, const MemoryRegion& region, size_t bytes, uint64_t to,
                        uint32_t rkey) {
    EXPECT_OK(pair.a.qp.PostWrite(1, region.addr(), bytes, &region, kSendSignaled, to, rkey));
    return NextStatus(pair.a.cq);
  }

  std::optional<Client> active_;
  std::optional<Client> passive_;
  std::vector<Pair> pairs_;
};

TEST_F(LanesTest, ADeviceSaysHowManyVectorsThereAre) {
  ASSERT_OK_AND_ASSIGN(const WiredEnd end, MakeEnd(*active_, Ipv4(0), {.comp_vector = 2}));
  EXPECT_EQ(end.device.num_comp_vectors, kEngines);
  EXPECT_EQ(end.cq.comp_vector(), 2u);
  const absl::Status none =
      CompletionQueue::Create(*active_, end.device.index, 16, nullptr, nullptr, kEngines).status();
  EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
  EXPECT_NE(none.message().find("comp_vector=3: allowed are 0 to 2"), absl::string_view::npos);
}

TEST_F(LanesTest, EachVectorIsAnEngine) {
  if (OnVerbs()) GTEST_SKIP() << "QPNs of HCAs name no engine";
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  std::set<uint32_t> engines;
  for (const Pair& pair : pairs_) engines.insert(pair.a.qp.qpn() & kEngineMask);
  EXPECT_EQ(engines.size(), kEngines);
  EXPECT_EQ(*engines.rbegin(), kEngines - 1);
}

// One region of either side, all vectors at once, each with a thread of the application's.
TEST_F(LanesTest, AllVectorsMoveDataAtOnceThroughTheSameRegions) {
  constexpr size_t kSlice = 16 * 1024;
  static_assert((kEngines + 1) * kSlice <= WiredEnd::kMemoryBytes);
  constexpr uint64_t kRounds = 100;
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  WiredEnd& source = pairs_[0].a;
  WiredEnd& target = pairs_[0].b;
  const auto run = [&](uint32_t vector) {
    WiredEnd& a = pairs_[vector].a;
    std::byte* const from = source.memory.data() + vector * kSlice;
    std::byte* const to = target.memory.data() + vector * kSlice;
    for (uint64_t round = 0; round < kRounds; ++round) {
      FillPattern({from, kSlice}, round * kEngines + vector);
      ASSERT_OK(a.qp.PostWrite(round, from, kSlice, &source.region, kSendSignaled,
                               target.AddressAt(vector * kSlice), target.region.rkey()));
      ASSERT_EQ(NextStatus(a.cq), WcStatus::kSuccess);
      ASSERT_EQ(PatternMismatch({to, kSlice}, round * kEngines + vector), std::nullopt);
      // Into memory of the vector's own end, behind all slices.
      std::byte* const back = a.memory.data() + kEngines * kSlice;
      ASSERT_OK(a.qp.PostRead(round, back, kSlice, &a.region, kSendSignaled,
                              target.AddressAt(vector * kSlice), target.region.rkey()));
      ASSERT_EQ(NextStatus(a.cq), WcStatus::kSuccess);
      ASSERT_EQ(PatternMismatch({back, kSlice}, round * kEngines + vector), std::nullopt);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t vector = 0; vector < kEngines; ++vector) threads.emplace_back(run, vector);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(LanesTest, ARegionThatGoesIsGoneOnEveryVectorAndTrafficOfOthersGoesOn) {
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  WiredEnd& host = pairs_[0].b;
  // Traffic of its own on vector 1, all the time.
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> writes{0};
  std::thread traffic([&] {
    while (!stop) {
      ASSERT_EQ(Write(pairs_[1], pairs_[1].a.region, 4096, pairs_[1].b.AddressAt(0),
                      pairs_[1].b.region.rkey()),
                WcStatus::kSuccess);
      ++writes;
    }
  });
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(*active_, 8192));
  ASSERT_OK_AND_ASSIGN(Buffer memory, pool.Allocate(8192));
  ASSERT_OK_AND_ASSIGN(MemoryRegion local, pairs_[0].a.pd.Reg(memory.data(), 8192, kRights));
  for (const uint32_t vector : {0u, 2u}) {
    EXPECT_EQ(Write(pairs_[vector], local, 4096, host.AddressAt(0), host.region.rkey()),
              WcStatus::kSuccess);
  }
  const uint32_t old_lkey = local.lkey();
  ASSERT_OK(local.Dereg());
  for (const uint32_t vector : {0u, 2u}) {
    QueuePair& qp = pairs_[vector].a.qp;
    const MemoryRegion gone(nullptr, memory.data(), 8192, old_lkey, old_lkey);
    ASSERT_OK(qp.PostWrite(1, memory.data(), 4096, &gone, kSendSignaled, host.AddressAt(0),
                           host.region.rkey()));
    const WcStatus status = NextStatus(pairs_[vector].a.cq);
    EXPECT_TRUE(status == WcStatus::kLocProtErr || (OnVerbs() && status == WcStatus::kLocQpOpErr))
        << WcStatusString(status);
  }
  stop = true;
  traffic.join();
  EXPECT_GT(writes, 0u);
}

TEST_F(LanesTest, AKeyThatGoesIsGoneForPeersOfEveryVector) {
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  WiredEnd& host = pairs_[0].b;
  ASSERT_OK_AND_ASSIGN(MemoryRegion exposed, host.pd.Reg(host.memory.data(), kHalf, kRights));
  const uint32_t rkey = exposed.rkey();
  for (Pair& pair : pairs_) {
    EXPECT_EQ(Write(pair, pair.a.region, 4096, host.AddressAt(0), rkey), WcStatus::kSuccess);
  }
  ASSERT_OK(exposed.Dereg());
  for (Pair& pair : pairs_) {
    EXPECT_EQ(Write(pair, pair.a.region, 4096, host.AddressAt(0), rkey), WcStatus::kRemAccessErr);
  }
}

TEST_F(LanesTest, AWindowIsBoundByQpsOfOneVectorAfterTheOther) {
  if (OnVerbs()) GTEST_SKIP() << "there it is the vector of the first bind that has it";
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  WiredEnd& host = pairs_[0].b;
  ASSERT_OK_AND_ASSIGN(const MemoryRegion bindable,
                       host.pd.Reg(host.memory.data(), kHalf, kRights));
  ASSERT_OK_AND_ASSIGN(MemoryWindow window, MemoryWindow::Alloc(host.pd));
  for (Pair& pair : pairs_) {
    ASSERT_OK(pair.b.qp.PostBind(1, &window, bindable, host.memory.data(), 4096, kAccessRemoteWrite,
                                 kSendSignaled));
    ASSERT_EQ(NextStatus(pair.b.cq), WcStatus::kSuccess);
    EXPECT_EQ(Write(pair, pair.a.region, 4096, host.AddressAt(0), window.rkey()),
              WcStatus::kSuccess);
    ASSERT_OK(pair.b.qp.PostLocalInv(2, window.rkey(), kSendSignaled));
    ASSERT_EQ(NextStatus(pair.b.cq), WcStatus::kSuccess);
  }
  // Bound on one, it is nobody else's.
  ASSERT_OK(pairs_[1].b.qp.PostBind(1, &window, bindable, host.memory.data(), 4096,
                                    kAccessRemoteWrite, kSendSignaled));
  ASSERT_EQ(NextStatus(pairs_[1].b.cq), WcStatus::kSuccess);
  ASSERT_OK(pairs_[2].b.qp.PostBind(1, &window, bindable, host.memory.data(), 4096,
                                    kAccessRemoteWrite, kSendSignaled));
  EXPECT_EQ(NextStatus(pairs_[2].b.cq), WcStatus::kMwBindErr);
}

TEST_F(LanesTest, AQpAndWhatItUsesAreOfOneVector) {
  ASSERT_OK_AND_ASSIGN(const WiredEnd end, MakeEnd(*active_, Ipv4(0)));
  ASSERT_OK_AND_ASSIGN(
      const CompletionQueue other,
      CompletionQueue::Create(*active_, end.device.index, 16, nullptr, nullptr, 1));
  QpInit init;
  init.send_cq = end.cq;
  init.recv_cq = other;
  init.cap = {.max_send_wr = 4, .max_recv_wr = 4};
  const absl::Status mixed = QueuePair::Create(end.pd, init).status();
  EXPECT_TRUE(absl::IsInvalidArgument(mixed)) << mixed;
  EXPECT_NE(mixed.message().find("same comp_vector"), absl::string_view::npos) << mixed;
  if (end.device.max_srq == 0) return;
  ASSERT_OK_AND_ASSIGN(const SharedReceiveQueue srq,
                       SharedReceiveQueue::Create(end.pd, {.max_wr = 4, .max_sge = 1}));
  init.recv_cq = end.cq;
  init.srq = srq;
  ASSERT_OK(QueuePair::Create(end.pd, init));
  init.send_cq = init.recv_cq = other;
  EXPECT_TRUE(absl::IsInvalidArgument(QueuePair::Create(end.pd, init).status()));
}

// The SRQ is made and filled before there is a QP, by a program that names vectors for CQs alone.
TEST_F(LanesTest, AnSrqServesTheQpsOfTheVectorOfItsFirst) {
  ASSERT_OK_AND_ASSIGN(WiredEnd host, MakeEnd(*passive_, Ipv4(1)));
  if (host.device.max_srq == 0) GTEST_SKIP() << host.device.name << " has no SRQs";
  ASSERT_OK_AND_ASSIGN(SharedReceiveQueue srq,
                       SharedReceiveQueue::Create(host.pd, {.max_wr = 16, .max_sge = 1}));
  for (uint64_t slot = 0; slot < 4; ++slot) {
    ASSERT_OK(srq.PostRecv(slot, host.memory.data() + slot * 1024, 1024, &host.region));
  }
  ASSERT_OK(srq.Modify(3));
  ASSERT_OK_AND_ASSIGN(const SrqAttr before, srq.Query());
  EXPECT_EQ(before.limit, 3u);
  WiredOptions shared{.srq = &srq, .pd = &host.pd, .comp_vector = 2};
  std::vector<Pair> pairs;
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(*active_, Ipv4(0), {.comp_vector = i}));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(*passive_, Ipv4(1), shared));
    ASSERT_OK(Wire(a, b));
    pairs.push_back({std::move(a), std::move(b)});
  }
  for (uint64_t slot = 4; slot < 8; ++slot) {
    ASSERT_OK(srq.PostRecv(slot, host.memory.data() + slot * 1024, 1024, &host.region));
  }
  for (uint64_t slot = 0; slot < 8; ++slot) {
    Pair& pair = pairs[slot % 2];
    FillPattern({pair.a.memory.data(), 1024}, slot);
    ASSERT_OK(pair.a.qp.PostSend(slot, pair.a.memory.data(), 1024, &pair.a.region, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(pair.b.cq, absl::Seconds(30)));
    EXPECT_EQ(received.status, WcStatus::kSuccess);
    EXPECT_EQ(received.wr_id, slot);
    EXPECT_EQ(PatternMismatch({host.memory.data() + slot * 1024, 1024}, slot), std::nullopt);
    ASSERT_EQ(NextStatus(pair.a.cq), WcStatus::kSuccess);
  }
  EXPECT_OK(NextEvent(*passive_, kAsyncSrqLimitReached));
}

TEST_F(LanesTest, OneChannelTellsOfCqsOfEveryVector) {
  ASSERT_OK_AND_ASSIGN(const CompletionChannel channel, CompletionChannel::Create(*passive_));
  std::vector<CompletionQueue> cqs;
  for (uint32_t vector = 0; vector < kEngines; ++vector) {
    ASSERT_OK_AND_ASSIGN(const WiredEnd probe, MakeEnd(*passive_, Ipv4(1)));
    ASSERT_OK_AND_ASSIGN(
        CompletionQueue cq,
        CompletionQueue::Create(*passive_, probe.device.index, 16, &channel, nullptr, vector));
    WiredOptions options{.cq = &cq};
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(*active_, Ipv4(0), {.comp_vector = vector}));
    ASSERT_OK_AND_ASSIGN(WiredEnd b, MakeEnd(*passive_, Ipv4(1), options));
    ASSERT_OK(Wire(a, b));
    ASSERT_OK(b.PostRecv(vector, 0, 100));
    cq.RequestNotify();
    cqs.push_back(cq);
    pairs_.push_back({std::move(a), std::move(b)});
  }
  for (uint32_t vector = kEngines; vector-- != 0;) {
    WiredEnd& a = pairs_[vector].a;
    ASSERT_OK(a.qp.PostSend(1, a.memory.data(), 100, &a.region, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(CompletionQueue ready, channel.GetEvent(Slow(absl::Seconds(10))));
    EXPECT_EQ(ready, cqs[vector]) << vector;
    ready.AckEvents();
    EXPECT_EQ(NextStatus(ready), WcStatus::kSuccess);
  }
}

TEST_F(LanesTest, AddressHandlesServeDatagramsOfEveryVector) {
  constexpr uint32_t kQkey = 0x1234;
  std::vector<AddressHandle> ways;
  std::optional<ProtectionDomain> pd;
  for (uint32_t vector = 0; vector < kEngines; ++vector) {
    WiredOptions ud{.type = QpType::kUd, .comp_vector = vector};
    if (pd) ud.pd = &*pd;
    ASSERT_OK_AND_ASSIGN(WiredEnd a, MakeEnd(*active_, Ipv4(0), ud));
    ASSERT_OK_AND_ASSIGN(WiredEnd b,
                         MakeEnd(*passive_, Ipv4(1), {.type = QpType::kUd, .comp_vector = vector}));
    ASSERT_OK(MakeReady(a, kQkey));
    ASSERT_OK(MakeReady(b, kQkey));
    if (!pd) pd = a.pd;
    ASSERT_OK_AND_ASSIGN(AddressHandle way, AddressHandle::Create(*pd, WayTo(a, b)));
    ways.push_back(way);  // one that is older than the lane, and younger ones
    for (const AddressHandle& to : ways) {
      ASSERT_OK(b.PostRecv(1, 0, 1024));
      SendWr wr;
      const Sge sge{a.AddressAt(0), 100, a.region.lkey()};
      wr.sges = {&sge, 1};
      wr.flags = kSendSignaled;
      wr.ah = &to;
      wr.remote_qpn = b.qp.qpn();
      wr.remote_qkey = kQkey;
      ASSERT_OK(a.qp.PostSend({&wr, 1}));
      EXPECT_EQ(NextStatus(a.cq), WcStatus::kSuccess) << vector;
      EXPECT_EQ(NextStatus(b.cq), WcStatus::kSuccess) << vector;
    }
    pairs_.push_back({std::move(a), std::move(b)});
  }
}

TEST_F(LanesTest, ConnectionsFollowTheirCqs) {
  for (uint32_t vector = 0; vector < kEngines; ++vector) {
    QpPairOptions options;
    options.active_vector = vector;
    options.passive_vector = kEngines - 1 - vector;
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(*active_, *passive_, Ipv4(1), options));
    ASSERT_OK_AND_ASSIGN(Pool from, Pool::Create(*active_, 4096));
    ASSERT_OK_AND_ASSIGN(Pool to, Pool::Create(*passive_, 4096));
    ASSERT_OK_AND_ASSIGN(Buffer sent, from.Allocate(4096));
    ASSERT_OK_AND_ASSIGN(Buffer got, to.Allocate(4096));
    ASSERT_OK_AND_ASSIGN(const MemoryRegion sends, pair.active.id->RegMsgs(sent.data(), 4096));
    ASSERT_OK_AND_ASSIGN(const MemoryRegion receives, pair.passive->RegMsgs(got.data(), 4096));
    FillPattern({sent.data(), 4096}, vector);
    ASSERT_OK(pair.passive->qp().PostRecv(1, got.data(), 4096, &receives));
    ASSERT_OK(pair.active.id->qp().PostSend(2, sent.data(), 4096, &sends, kSendSignaled));
    EXPECT_EQ(NextStatus(pair.active_cq), WcStatus::kSuccess);
    EXPECT_EQ(NextStatus(pair.passive_cq), WcStatus::kSuccess);
    EXPECT_EQ(PatternMismatch({got.data(), 4096}, vector), std::nullopt);
    ASSERT_OK(pair.active.id->Disconnect());
  }
}

TEST_F(LanesTest, AKilledApplicationLeavesNothingOnAnyEngine) {
  ASSERT_OK_AND_ASSIGN(const RawClient observer, RawClient::Attach(Daemon(0).run_dir()));
  ASSERT_OK_AND_ASSIGN(const std::string before, CountObjects(observer));
  const int rounds = Fewer(10);
  for (int round = 0; round < rounds; ++round) {
    ASSERT_OK_AND_ASSIGN(Application app, Application::UseLanes(Daemon(0), Ipv4(0)));
    app.Kill();
    EXPECT_TRUE(Eventually(absl::Seconds(5),
                           [&] {
                             const absl::StatusOr<std::string> now = CountObjects(observer);
                             return now.ok() && *now == before;
                           }))
        << "before:\n"
        << before << "after:\n"
        << *CountObjects(observer);
  }
}

TEST_F(LanesTest, OperatorsSeeWhichEnginesAnApplicationUses) {
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  ASSERT_OK_AND_ASSIGN(const RawClient observer, RawClient::Attach(Daemon(0).run_dir()));
  v1::ListSessionsReply sessions;
  ASSERT_OK(observer.Call(observer.admin(), &v1::AdminService::Stub::ListSessions,
                          v1::ListSessionsRequest(), &sessions));
  ASSERT_EQ(sessions.sessions_size(), 2);
  for (const v1::SessionStatus& session : sessions.sessions()) {
    const std::set<uint32_t> engines(session.engines().begin(), session.engines().end());
    EXPECT_EQ(engines.size(), session.name() == "active" ? kEngines : 1u);
  }
}

// All doorbells of a lane, again and again, and its wake pipe full.
TEST_F(LanesTest, AHostileLaneHarmsNobodyElse) {
  ASSERT_NO_FATAL_FAILURE(MakePairs());
  ASSERT_OK_AND_ASSIGN(RawClient hostile, RawClient::Attach(Daemon(0).run_dir(), "hostile"));
  v1::CreateCqRequest make;
  make.set_depth(16);
  make.set_comp_vector(1);
  v1::CreateCqReply made;
  ASSERT_OK(hostile.Call(hostile.verbs(), &v1::VerbsService::Stub::CreateCq, make, &made));
  ASSERT_TRUE(made.has_lane());
  ASSERT_OK_AND_ASSIGN(const UniqueFd control,
                       hostile.TakeDescriptor(made.lane().control_segment_tag()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd page, hostile.TakeDescriptor(made.lane().engine_page_tag()));
  ASSERT_OK_AND_ASSIGN(const UniqueFd wake, hostile.TakeDescriptor(made.lane().wake_pipe_tag()));
  EXPECT_NE(::ftruncate(control.get(), 0), 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0), MAP_FAILED);
  void* const data = ::mmap(nullptr, made.lane().control_segment_bytes(), PROT_READ | PROT_WRITE,
                            MAP_SHARED, control.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  auto& bells = *static_cast<shm::ControlSegment*>(data);
  for (int round = 0; round < 20; ++round) {
    for (auto& word : bells.words) word.store(UINT64_MAX, std::memory_order_relaxed);
    for (auto& word : bells.summary) word.store(UINT64_MAX, std::memory_order_seq_cst);
    const char bytes[64] = {};
    ASSERT_GT(::write(wake.get(), bytes, sizeof(bytes)), 0);
    for (Pair& pair : pairs_) {
      EXPECT_EQ(Write(pair, pair.a.region, 4096, pair.b.AddressAt(0), pair.b.region.rkey()),
                WcStatus::kSuccess);
    }
  }
  ::munmap(data, made.lane().control_segment_bytes());
}

}  // namespace
}  // namespace rdmad::testing
