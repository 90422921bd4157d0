// The life of verbs devices and of what applications have of them, on the kernel's rxe: a device
// that goes under load and comes back, applications that are killed, locked memory that is short.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/application.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/integration/traffic.h"
#include "tests/integration/wired.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {
namespace {

// Of rxe_pair (guest.sh).
constexpr char kDevice[] = "rxeA";
constexpr char kOtherDevice[] = "rxeB";
constexpr char kNetdev[] = "vA";

class VerbsLifeTest : public LoopbackTest {
 protected:
  void SetUp() override {
    if (!OnVerbs()) GTEST_SKIP() << "needs two rxe devices; see //tests/vm:verbs_life_test";
  }

  ProgramResult Rdmactl(const std::string& command) {
    absl::StatusOr<ProgramResult> result =
        RunProgram({Runfile("client/rdmactl/rdmactl"), "--run-dir", Daemon(0).run_dir(), command});
    EXPECT_OK(result);
    return std::move(result).value_or(ProgramResult{});
  }
  static ProgramResult Rdma(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "rdma");
    absl::StatusOr<ProgramResult> result = RunProgram(arguments);
    EXPECT_OK(result);
    return std::move(result).value_or(ProgramResult{});
  }
};

// Work requests that are under way, by wr_id. What completes twice, or was never posted, is a
// failure.
class Outstanding {
 public:
  void Posted(uint64_t wr_id) { ++left_[wr_id]; }
  void Completed(const Wc& wc) {
    EXPECT_EQ(left_.erase(wc.wr_id), 1u) << "wr_id " << wc.wr_id << " completed once more";
    if (wc.status == WcStatus::kSuccess) {
      ++succeeded_;
      EXPECT_FALSE(failed()) << "success behind a failure";
    } else {
      ++failed_;
    }
  }
  [[nodiscard]] size_t left() const { return left_.size(); }
  [[nodiscard]] bool failed() const { return failed_ > 0; }
  [[nodiscard]] int failures() const { return failed_; }
  [[nodiscard]] int successes() const { return succeeded_; }

 private:
  std::map<uint64_t, int> left_;
  int succeeded_ = 0;
  int failed_ = 0;
};

// Keeps a QP's send queue full, and some receives posted, until the first failure; then waits for
// all.
class Load {
 public:
  static constexpr uint64_t kReceives = 16;
  static constexpr size_t kSends = 16;

  Load(QueuePair qp, CompletionQueue cq) : qp_(qp), cq_(cq) {
    for (uint64_t i = 0; i < kReceives; ++i) {
      EXPECT_OK(qp_.PostRecv(i, nullptr, 0, nullptr));
      work_.Posted(i);
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() {
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] int successes() const { return successes_; }
  // When all has completed, or time is over.
  const Outstanding& Join() {
    thread_.join();
    return work_;
  }

 private:
  void Run() {
    uint64_t next = kReceives;
    const absl::Time deadline = absl::Now() + Slow(absl::Seconds(10));
    while (absl::Now() < deadline && (!work_.failed() || work_.left() > 0)) {
      while (!work_.failed() && work_.left() < kReceives + kSends &&
             qp_.PostSend(next, nullptr, 0, nullptr, kSendSignaled).ok()) {
        work_.Posted(next++);
      }
      Wc wc;
      if (cq_.Poll({&wc, 1}) == 0) {
        std::this_thread::yield();
        continue;
      }
      work_.Completed(wc);
      successes_ = work_.successes();
    }
    // Nothing more comes.
    Wc wc;
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_EQ(cq_.Poll({&wc, 1}), 0u);
  }

  QueuePair qp_;
  CompletionQueue cq_;
  Outstanding work_;
  std::atomic<int> successes_{0};
  std::thread thread_;
};

// Takes messages as long as it lives.
class Sink {
 public:
  Sink(QueuePair qp, CompletionQueue cq)
      : thread_([this, qp, cq]() mutable {
          for (int i = 0; i < 64; ++i) EXPECT_OK(qp.PostRecv(1, nullptr, 0, nullptr));
          while (!stop_) {
            Wc wc;
            if (cq.Poll({&wc, 1}) == 0) {
              std::this_thread::yield();
            } else if (wc.status == WcStatus::kSuccess) {
              (void)qp.PostRecv(1, nullptr, 0, nullptr);
            }
          }
        }) {}
  ~Sink() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(VerbsLifeTest, ADeviceGoesUnderLoadAndComesBack) {
  ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(Client active, AttachTo(Daemon(0), "active"));
  ASSERT_OK_AND_ASSIGN(Client passive, AttachTo(Daemon(0), "passive"));
  ASSERT_OK_AND_ASSIGN(Client idle, AttachTo(Daemon(0), "idle"));
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(active, passive, Ipv4(1)));
  ASSERT_OK_AND_ASSIGN(ListeningId bound, ListenOn(idle, Ipv4(0)));
  ASSERT_OK_AND_ASSIGN(ListeningId wildcard, ListenOn(idle, "0.0.0.0"));
  std::optional<Sink> sink(std::in_place, pair.passive->qp(), pair.passive_cq);
  Load load(pair.active.id->qp(), pair.active_cq);
  ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return load.successes() > 100; }));

  const absl::Time start = absl::Now();
  const ProgramResult deleted = Rdma({"link", "delete", kDevice});
  EXPECT_TRUE(deleted.ok()) << deleted.output;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));

  // Every id on it hears of it, and no other.
  EXPECT_OK(ExpectEvent(*pair.active.channel, CmEventType::kDeviceRemoval));
  EXPECT_OK(ExpectEvent(*bound.channel, CmEventType::kDeviceRemoval));
  for (EventChannel* other : {wildcard.channel.get(), pair.listener.channel.get()}) {
    absl::StatusOr<std::unique_ptr<CmEvent>> event = other->GetEvent(absl::Milliseconds(100));
    EXPECT_TRUE(!event.ok() || (*event)->type() != CmEventType::kDeviceRemoval);
  }
  // All work flushes, once.
  const Outstanding& work = load.Join();
  EXPECT_EQ(work.left(), 0u);
  EXPECT_GE(work.failures(), static_cast<int>(Load::kReceives));
  // All sessions hear of it.
  for (Client* client : {&active, &passive, &idle}) {
    absl::StatusOr<AsyncEvent> event = client->GetAsyncEvent(Slow(absl::Seconds(1)));
    ASSERT_OK(event);
    // A QP may have gone before its device.
    while (event.ok() && event->type != kAsyncDeviceFatal) {
      event = client->GetAsyncEvent(Slow(absl::Seconds(1)));
    }
    EXPECT_OK(event);
  }
  // The daemon and the other device live on.
  EXPECT_TRUE(Rdmactl("status").ok());
  const std::string left = Rdmactl("devices").output;
  EXPECT_EQ(left.find(kDevice), std::string::npos) << left;
  EXPECT_NE(left.find(kOtherDevice), std::string::npos) << left;
  EXPECT_OK(ListenOn(passive, Ipv4(1)));
  sink.reset();

  ASSERT_TRUE(Rdma({"link", "add", kDevice, "type", "rxe", "netdev", kNetdev}).ok());

  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return Rdmactl("devices").output.find(kDevice) != std::string::npos;
  }));
  // From the device that is back to the one that was there all the time.
  absl::StatusOr<QpPair> again = absl::UnavailableError("not tried");
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    again = ConnectQps(active, passive, Ipv4(1));
    return again.ok();
  })) << again.status();
  ASSERT_OK(again);
  ASSERT_OK(again->passive->qp().PostRecv(1, nullptr, 0, nullptr));
  ASSERT_OK(again->active.id->qp().PostSend(2, nullptr, 0, nullptr, kSendSignaled));
  ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(again->passive_cq));
  EXPECT_EQ(received.status, WcStatus::kSuccess);
  // The wildcard listens on it too.
  ASSERT_OK_AND_ASSIGN(const Address there,
                       Address::Parse(WithPort(Ipv4(0), wildcard.address.port)));
  ASSERT_OK_AND_ASSIGN(ActiveId asking, Resolve(active, there));
  ASSERT_OK(asking.id->CreateQp(nullptr, {}));
  ASSERT_OK(asking.id->Connect());
  EXPECT_OK(ExpectEvent(*wildcard.channel, CmEventType::kConnectRequest));
}

// Each engine lets go of what it drives; the device goes when the last has.
TEST_F(VerbsLifeTest, ADeviceGoesUnderTheLoadOfAnApplicationOnTwoEngines) {
  constexpr uint32_t kEngines = 2;
  ASSERT_OK(StartDaemon(0, {.log_level = "info", .more_config = "[engine]\ncount = 2\n"}));
  ASSERT_OK_AND_ASSIGN(Client active, AttachTo(Daemon(0), "active"));
  ASSERT_OK_AND_ASSIGN(Client passive, AttachTo(Daemon(0), "passive"));
  const auto make = [&](std::vector<WiredEnd>* ends, const Client& client, int host) {
    for (uint32_t vector = 0; vector < kEngines; ++vector) {
      WiredOptions options{.comp_vector = vector};
      if (vector != 0) options.pd = &ends->front().pd;
      ASSERT_OK_AND_ASSIGN(WiredEnd end, MakeEnd(client, Ipv4(host), options));
      ends->push_back(std::move(end));
    }
  };
  std::vector<WiredEnd> near;
  std::vector<WiredEnd> far;
  ASSERT_NO_FATAL_FAILURE(make(&near, active, 0));
  ASSERT_NO_FATAL_FAILURE(make(&far, passive, 1));
  std::vector<std::unique_ptr<Sink>> sinks;
  std::vector<std::unique_ptr<Load>> loads;
  for (uint32_t i = 0; i < kEngines; ++i) {
    ASSERT_OK(Wire(near[i], far[i]));
    sinks.push_back(std::make_unique<Sink>(far[i].qp, far[i].cq));
    loads.push_back(std::make_unique<Load>(near[i].qp, near[i].cq));
  }
  for (const auto& load : loads) {
    ASSERT_TRUE(Eventually(absl::Seconds(10), [&] { return load->successes() > 100; }));
  }

  const ProgramResult deleted = Rdma({"link", "delete", kDevice});
  EXPECT_TRUE(deleted.ok()) << deleted.output;

  for (const auto& load : loads) {
    const Outstanding& work = load->Join();
    EXPECT_EQ(work.left(), 0u);
    EXPECT_GE(work.failures(), static_cast<int>(Load::kReceives));
  }
  absl::StatusOr<AsyncEvent> event = active.GetAsyncEvent(Slow(absl::Seconds(1)));
  while (event.ok() && event->type != kAsyncDeviceFatal) {
    event = active.GetAsyncEvent(Slow(absl::Seconds(1)));
  }
  EXPECT_OK(event);
  EXPECT_TRUE(Rdmactl("status").ok());
  sinks.clear();
  near.clear();
  far.clear();

  ASSERT_TRUE(Rdma({"link", "add", kDevice, "type", "rxe", "netdev", kNetdev}).ok());
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return MakeEnd(active, Ipv4(0)).ok();
  }));
  ASSERT_NO_FATAL_FAILURE(make(&near, active, 0));
  ASSERT_NO_FATAL_FAILURE(make(&far, passive, 1));
  for (uint32_t i = 0; i < kEngines; ++i) {
    ASSERT_OK(Wire(near[i], far[i]));
    ASSERT_OK(far[i].PostRecv(1, 0, 100));
    ASSERT_OK(near[i].qp.PostSend(2, nullptr, 0, nullptr, kSendSignaled));
    ASSERT_OK_AND_ASSIGN(const Wc received, WaitForWc(far[i].cq));
    EXPECT_EQ(received.status, WcStatus::kSuccess);
  }
}

// Asks for a handle to an address of the device's network at which nobody is: the kernel looks for
// it for a second.
class DeadNeighbour {
 public:
  explicit DeadNeighbour(const ProtectionDomain& pd, uint32_t sgid_index)
      : thread_([this, pd, sgid_index] {
          AddressHandleAttr attr;
          attr.dest_gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 99};
          attr.sgid_index = sgid_index;
          status_ = AddressHandle::Create(pd, attr).status();
          answered_ = true;
        }) {}
  ~DeadNeighbour() {
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] bool answered() const { return answered_; }
  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  absl::Status status_;
  std::atomic<bool> answered_{false};
  std::thread thread_;
};

TEST_F(VerbsLifeTest, AHandleToNobodyHoldsUpNobodyElseAndEndsWithItsDevice) {
  ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(Client asking, AttachTo(Daemon(0), "asking"));
  ASSERT_OK_AND_ASSIGN(Client other, AttachTo(Daemon(0), "other"));
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceInfo> devices, asking.GetDevices());
  const auto device = std::find_if(devices.begin(), devices.end(),
                                   [](const DeviceInfo& one) { return one.name == kDevice; });
  ASSERT_NE(device, devices.end());
  const auto v4 = std::find_if(device->gids.begin(), device->gids.end(),
                               [](const Gid& gid) { return gid.text == Ipv4(0); });
  ASSERT_NE(v4, device->gids.end());
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, ProtectionDomain::Alloc(asking, device->index));
  {
    const absl::Time start = absl::Now();
    DeadNeighbour dead(pd, v4->index);
    int served = 0;
    for (; !dead.answered(); ++served) {
      ASSERT_OK(ProtectionDomain::Alloc(other, device->index));
      ASSERT_OK(ProtectionDomain::Alloc(asking, device->index));
    }
    const absl::Status status = dead.Join();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_GT(absl::Now() - start, absl::Milliseconds(500)) << "it was not looked for";
    EXPECT_GT(served, 3) << "while it was looked for";
  }
  ProgramResult deleted;
  {
    DeadNeighbour dead(pd, v4->index);
    absl::SleepFor(absl::Milliseconds(200));
    EXPECT_FALSE(dead.answered());
    deleted = Rdma({"link", "delete", kDevice});
    EXPECT_FALSE(dead.Join().ok());
  }
  EXPECT_TRUE(deleted.ok()) << deleted.output;
  EXPECT_TRUE(Rdmactl("status").ok());
  ASSERT_TRUE(Rdma({"link", "add", kDevice, "type", "rxe", "netdev", kNetdev}).ok());
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
    return Rdmactl("devices").output.find(kDevice) != std::string::npos;
  }));
}

// Promise 3, for what the kernel has.
TEST_F(VerbsLifeTest, AKilledApplicationLeavesNothingInTheKernel) {
  const int rounds = 100;
  ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
  ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0), "survivor"));
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client, WithPort(Ipv4(1), 0)));
  std::mt19937_64 random(20261130);
  std::string baseline;
  int with_traffic = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_OK_AND_ASSIGN(
        Application victim,
        Application::Connect(Daemon(0), Ipv4(1), listener.local_addr().port,
                             static_cast<uint64_t>(round), /*hoards=*/round % 4 < 2));
    std::atomic<bool> killed{false};
    std::atomic<bool> accepted{false};
    TrafficCounts counts;
    std::thread server([&] {
      absl::StatusOr<Endpoint> endpoint = absl::UnavailableError("not tried");
      // A victim that was killed early never comes.
      while (!endpoint.ok() && !killed) endpoint = listener.Accept(absl::Milliseconds(100));
      if (!endpoint.ok()) return;
      accepted = true;
      const std::atomic<bool> stop{false};
      EXPECT_FALSE(absl::IsDataLoss(
          RunTraffic(client, *endpoint, {.seed = static_cast<uint64_t>(round)}, stop, &counts)));
    });
    // Every other victim gets as far as traffic; the others die on their way.
    if (round % 2 == 0) {
      EXPECT_TRUE(Eventually(absl::Seconds(10), [&] { return counts.received > 0; }))
          << victim.Output();
    }
    absl::SleepFor(absl::Milliseconds(static_cast<int>(random() % 300)));
    victim.Kill();
    killed = true;
    server.join();
    EXPECT_EQ(victim.Output().find("traffic_app: "), std::string::npos) << victim.Output();
    if (counts.received > 0) ++with_traffic;
    if (baseline.empty()) {
      // What is made once on first use exists now.
      absl::SleepFor(absl::Seconds(2));
      baseline = Rdma({"resource", "show"}).output;
    }
    std::string after;
    ASSERT_TRUE(Eventually(absl::Seconds(2),
                           [&] {
                             after = Rdma({"resource", "show"}).output;
                             return after == baseline;
                           }))
        << "before:\n"
        << baseline << "after:\n"
        << after;
  }
  EXPECT_GE(with_traffic, rounds / 2);
  std::cout << rounds << " rounds, " << with_traffic << " of them with traffic; at the end:\n"
            << baseline;
}

TEST_F(VerbsLifeTest, ADaemonThatMayLockLittleMemorySaysSoAtItsStartAndWhereItFails) {
  const TempDir folder;
  const std::string config = folder.path() + "/rdmad.toml";
  ASSERT_TRUE(WriteFile(config, "[soft]\nenabled = false\n"));
  ProcessOptions options;
  options.output_file = folder.path() + "/log";
  ASSERT_OK_AND_ASSIGN(
      ChildProcess daemon,
      ChildProcess::Start({"prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock",
                           "--inh-caps=-ipc_lock", Runfile("daemon/rdmad"), "--config", config,
                           "--run-dir", folder.path() + "/run"},
                          options));
  AttachOptions attach;
  attach.run_dir = folder.path() + "/run";
  attach.deadline = Slow(absl::Seconds(5));
  const absl::StatusOr<Client> client = Client::Attach(attach);
  const std::string log = ReadFile(options.output_file);
  ASSERT_OK(client) << log;
  EXPECT_NE(log.find("65536 bytes (RLIMIT_MEMLOCK)"), std::string::npos) << log;
  EXPECT_NE(log.find("LimitMEMLOCK=infinity"), std::string::npos) << log;

  ASSERT_OK_AND_ASSIGN(const Pool pool, Pool::Create(*client, 1 << 20));
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, ProtectionDomain::Alloc(*client, 0));
  const absl::Status refused = pd.RegMsgs(pool.memory().data(), 1 << 20).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("MEMLOCK"), absl::string_view::npos) << refused;
}

}  // namespace
}  // namespace rdmad::testing
