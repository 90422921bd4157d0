// Our soft device against the kernel's RDMA: rdmad serves the namespace "peer" (set-up two_hosts of guest.sh), rdma-core's
// own programs run over rxe in the first one, and both ends check every byte that SEND, RDMA READ and RDMA WRITE moved.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/unique_fd.h"
#include "rdmad/rdmad.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tools.h"
#include "tests/vm/rping.h"

namespace rdmad::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// As set up by two_hosts.
struct Addresses {
  const char* kernel;
  const char* ours;
};
constexpr Addresses kIpv4 = {"10.77.0.1", "10.77.0.2"};
constexpr Addresses kIpv6 = {"fd77::1", "fd77::2"};

std::string WithPort(const std::string& address, int port) {
  return address.find(':') == std::string::npos ? absl::StrCat(address, ":", port)
                                                : absl::StrCat("[", address, "]:", port);
}

// Puts the calling thread, and what it starts, into the network namespace "peer" while it lives.
class InPeer {
 public:
  InPeer()
      : before_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)),
        peer_(::open("/run/netns/peer", O_RDONLY | O_CLOEXEC)) {
    entered_ = peer_.valid() && ::setns(peer_.get(), CLONE_NEWNET) == 0;
  }
  ~InPeer() { EXPECT_EQ(::setns(before_.get(), CLONE_NEWNET), 0); }
  InPeer(const InPeer&) = delete;
  InPeer& operator=(const InPeer&) = delete;

  [[nodiscard]] bool entered() const { return entered_; }

 private:
  UniqueFd before_;
  UniqueFd peer_;
  bool entered_ = false;
};

// The daemon of "peer", an application of it, and the programs of rdma-core: for all tests, since emulated programs take
// long to start.
class Bed : public ::testing::Environment {
 public:
  static Bed& Get() {
    static Bed* bed = static_cast<Bed*>(::testing::AddGlobalTestEnvironment(new Bed));
    return *bed;
  }

  static bool IsInGuest() { return ::access("/run/netns/peer", F_OK) == 0; }

  void SetUp() override {
    if (!IsInGuest()) return;
    {
      const InPeer peer;
      ASSERT_TRUE(peer.entered());
      daemon_.emplace(DaemonOptions{.addresses = {kIpv4.ours, kIpv6.ours}});
      // Start() knows nothing of emulation on a busy machine.
      absl::Status started;
      for (int i = 0; i < 3 && !(started = daemon_->Start()).ok(); ++i) continue;
      ASSERT_OK(started);
    }
    AttachOptions options;
    options.run_dir = daemon_->run_dir();
    options.deadline = kPatience;
    ASSERT_OK_AND_ASSIGN(Client client, Client::Attach(options));
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client, 1 << 20));
    for (const char* program : {"rping", "ucmatose"}) {
      ASSERT_OK_AND_ASSIGN(programs_[program], FindTool(program));
    }
    client_.emplace(std::move(client));
    pool_.emplace(std::move(pool));
  }

  void TearDown() override {
    pool_.reset();
    client_.reset();
    daemon_.reset();
  }

  // False when SetUp failed.
  bool stands() const { return pool_.has_value(); }
  const DaemonProcess& daemon() const { return *daemon_; }
  const Client& client() const { return *client_; }
  Pool& pool() { return *pool_; }
  const std::string& program(const std::string& name) { return programs_[name]; }

 private:
  std::optional<DaemonProcess> daemon_;
  std::optional<Client> client_;
  std::optional<Pool> pool_;
  std::map<std::string, std::string> programs_;
};

[[maybe_unused]] const Bed& kBed = Bed::Get();

class RxeInterop : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Bed::IsInGuest()) {
      GTEST_SKIP() << "needs a guest with the set-up two_hosts: run //tests/vm:rxe_interop_test";
    }
    ASSERT_TRUE(Bed::Get().stands());
  }

  void TearDown() override {
    if (HasFailure() && Bed::Get().stands()) {
      std::cerr << "==== output of the kernel's program\n"
                << ReadFile(output_file()) << "==== log of rdmad\n"
                << LastLines(Bed::Get().daemon().Log(), 60) << "====\n";
    }
  }

  const Client& client() { return Bed::Get().client(); }
  Pool& pool() { return Bed::Get().pool(); }
  std::string output_file() const { return folder_.path() + "/kernel"; }

  // Starts one of rdma-core's programs over rxe.
  absl::StatusOr<ChildProcess> StartKernel(const std::string& command_line) {
    std::vector<std::string> argv = absl::StrSplit(command_line, ' ');
    argv[0] = Bed::Get().program(argv[0]);
    ProcessOptions options;
    options.output_file = output_file();
    return ChildProcess::Start(argv, options);
  }

  // Connects to a program that may not listen yet.
  absl::StatusOr<Endpoint> Connect(const std::string& peer) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (true) {
      absl::StatusOr<Endpoint> endpoint = Endpoint::Connect(client(), peer);
      if (endpoint.ok() || !absl::IsAborted(endpoint.status()) || absl::Now() > deadline) return endpoint;
      absl::SleepFor(absl::Milliseconds(100));
    }
  }

  static void ExpectGoodEnd(ChildProcess& process) {
    const std::optional<ExitStatus> ended = process.Wait(kPatience);
    ASSERT_TRUE(ended.has_value()) << "the kernel's program does not end";
    EXPECT_TRUE(ended->ok()) << ended->ToString();
  }

 private:
  const TempDir folder_;
};

struct Case {
  const char* name;
  Addresses addresses;
  size_t size_bytes;
  int rounds;
};

// One packet, exactly one path MTU and one byte more, and as much as rping can.
constexpr std::array kCases = {
    Case{"Small", kIpv4, 64, 20},     Case{"OneMtu", kIpv4, 4096, 5},
    Case{"MtuPlusOne", kIpv4, 4097, 5}, Case{"Large", kIpv4, 65000, 5},
    Case{"SmallIpv6", kIpv6, 64, 20}, Case{"LargeIpv6", kIpv6, 65000, 5},
};

class RxeRping : public RxeInterop, public ::testing::WithParamInterface<Case> {};

TEST_P(RxeRping, KernelPingsUs) {
  const Case& c = GetParam();
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(c.addresses.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -V -v -a ", c.addresses.ours, " -C ",
                                                                    c.rounds, " -S ", c.size_bytes)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  ASSERT_OK_AND_ASSIGN(const int rounds, ServeRping(endpoint, pool(), c.size_bytes));
  EXPECT_EQ(rounds, c.rounds);
  ExpectGoodEnd(rping);
}

TEST_P(RxeRping, WePingTheKernel) {
  const Case& c = GetParam();
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -s -v -a ", c.addresses.kernel, " -C ",
                                                                    c.rounds, " -S ", c.size_bytes)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(c.addresses.kernel, 7174)));
  EXPECT_OK(PingRping(endpoint, pool(), c.size_bytes, c.rounds));
  EXPECT_OK(endpoint.Close());
  ExpectGoodEnd(rping);
}

INSTANTIATE_TEST_SUITE_P(, RxeRping, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ucmatose(1): several connections at once; on each the server sends messages first, then the client as many.
constexpr int kConnections = 4;
constexpr int kMessages = 8;
constexpr size_t kMessageBytes = 3000;

class RxeUcmatose : public RxeInterop {
 protected:
  void SendMessages(Endpoint& endpoint) {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_OK_AND_ASSIGN(Buffer message, pool().Allocate(kMessageBytes));
      ASSERT_OK(endpoint.Send(std::move(message)));
    }
  }
  void ReceiveMessages(Endpoint& endpoint) {
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_OK_AND_ASSIGN(const Buffer message, endpoint.Receive(kPatience));
      ASSERT_EQ(message.size(), kMessageBytes);
    }
  }
};

TEST_F(RxeUcmatose, KernelOpensSeveralConnectionsToUs) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7471)));
  ASSERT_OK_AND_ASSIGN(ChildProcess ucmatose,
                       StartKernel(absl::StrCat("ucmatose -s ", kIpv4.ours, " -c ", kConnections, " -C ", kMessages,
                                                " -S ", kMessageBytes)));
  std::vector<Endpoint> endpoints;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
    endpoints.push_back(std::move(endpoint));
  }
  for (Endpoint& endpoint : endpoints) SendMessages(endpoint);
  for (Endpoint& endpoint : endpoints) {
    ReceiveMessages(endpoint);
    EXPECT_OK(endpoint.Close());
  }
  ExpectGoodEnd(ucmatose);
}

TEST_F(RxeUcmatose, WeOpenSeveralConnectionsToTheKernel) {
  ASSERT_OK_AND_ASSIGN(ChildProcess ucmatose,
                       StartKernel(absl::StrCat("ucmatose -b ", kIpv4.kernel, " -c ", kConnections, " -C ", kMessages,
                                                " -S ", kMessageBytes)));
  std::vector<Endpoint> endpoints;
  for (int i = 0; i < kConnections; ++i) {
    ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kIpv4.kernel, 7471)));
    endpoints.push_back(std::move(endpoint));
  }
  for (Endpoint& endpoint : endpoints) {
    ReceiveMessages(endpoint);
    SendMessages(endpoint);
    EXPECT_OK(endpoint.Close());
  }
  ExpectGoodEnd(ucmatose);
}

TEST_F(RxeInterop, KernelRejectsWhereNobodyListens) {
  const absl::StatusOr<Endpoint> endpoint = Endpoint::Connect(client(), WithPort(kIpv4.kernel, 7999));
  EXPECT_TRUE(absl::IsAborted(endpoint.status())) << endpoint.status().ToString();
}

TEST_F(RxeInterop, WeRejectTheKernelWhereNobodyListens) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -a ", kIpv4.ours, " -C 1")));
  const std::optional<ExitStatus> ended = rping.Wait(kPatience);
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok());
  // RDMA_CM_EVENT_REJECTED with the reason "invalid service id".
  EXPECT_NE(ReadFile(output_file()).find("RDMA_CM_EVENT_REJECTED, error 8"), std::string::npos);
}

TEST_F(RxeInterop, AKilledKernelProgramClosesOurEnd) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -a ", kIpv4.ours)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  ASSERT_OK(endpoint.Receive(kPatience));
  rping.Kill();
  const absl::StatusOr<Buffer> end = endpoint.Receive(kPatience);
  EXPECT_TRUE(IsClosed(end.status())) << end.status().ToString();
}

TEST_F(RxeInterop, TheKernelRefusesAWrongKey) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -c -a ", kIpv4.ours)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  ASSERT_OK_AND_ASSIGN(RemoteBuffer source, ReceiveRpingBuffer(endpoint));
  source.rkey ^= 0xff00;
  ASSERT_OK_AND_ASSIGN(Buffer local, pool().Allocate(64));
  const absl::Status status = endpoint.Read(local, source);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status.ToString();
}

TEST_F(RxeInterop, WeRefuseTheKernelAWrongKey) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping, StartKernel(absl::StrCat("rping -s -a ", kIpv4.kernel)));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kIpv4.kernel, 7174)));
  ASSERT_OK_AND_ASSIGN(Buffer source, pool().Allocate(64));
  ASSERT_OK_AND_ASSIGN(const MemoryRegion region, endpoint.Share(source, kAccessRemoteWrite));
  // The server reads, and the region is not to be read.
  ASSERT_OK(SendRpingBuffer(endpoint, Endpoint::Describe(region)));
  const std::optional<ExitStatus> ended = rping.Wait(kPatience);
  ASSERT_TRUE(ended.has_value());
  EXPECT_FALSE(ended->ok());
  // IBV_WC_REM_ACCESS_ERR.
  EXPECT_NE(ReadFile(output_file()).find("failed status 10"), std::string::npos);
}

// Every packet of either direction is lost with this probability once the connection stands.
constexpr char kLoss[] = "2%";

class RxeLoss : public RxeInterop {
 protected:
  void LosePackets() {
    Tc({"add", "dev", "vA", "root", "netem", "loss", kLoss});
    const InPeer peer;
    Tc({"add", "dev", "vB", "root", "netem", "loss", kLoss});
  }
  void TearDown() override {
    if (Bed::Get().stands()) {
      int lost = StopLosing("vA");
      {
        const InPeer peer;
        lost += StopLosing("vB");
      }
      EXPECT_GT(lost, 0);
    }
    RxeInterop::TearDown();
  }

 private:
  // Returns how many packets were lost.
  static int StopLosing(const std::string& interface) {
    const std::string statistics = Tc({"show", "dev", interface});
    Tc({"del", "dev", interface, "root"});
    const size_t at = statistics.find("dropped ");
    return at == std::string::npos ? 0 : std::atoi(statistics.c_str() + at + 8);
  }
  static std::string Tc(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"tc", "-s", "qdisc"});
    const absl::StatusOr<ProgramResult> tc = RunProgram(arguments);
    EXPECT_OK(tc);
    if (!tc.ok()) return "";
    EXPECT_TRUE(tc->ok()) << tc->output;
    return tc->output;
  }
};

TEST_F(RxeLoss, KernelPingsUs) {
  ASSERT_OK_AND_ASSIGN(Listener listener, Listener::Listen(client(), WithPort(kIpv4.ours, 7174)));
  ASSERT_OK_AND_ASSIGN(ChildProcess rping,
                       StartKernel(absl::StrCat("rping -c -V -a ", kIpv4.ours, " -C 20 -S 20000")));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, listener.Accept(kPatience));
  LosePackets();
  ASSERT_OK_AND_ASSIGN(const int rounds, ServeRping(endpoint, pool(), 20000));
  EXPECT_EQ(rounds, 20);
  ExpectGoodEnd(rping);
}

TEST_F(RxeLoss, WePingTheKernel) {
  ASSERT_OK_AND_ASSIGN(ChildProcess rping,
                       StartKernel(absl::StrCat("rping -s -a ", kIpv4.kernel, " -S 20000")));
  ASSERT_OK_AND_ASSIGN(Endpoint endpoint, Connect(WithPort(kIpv4.kernel, 7174)));
  LosePackets();
  EXPECT_OK(PingRping(endpoint, pool(), 20000, 20));
  EXPECT_OK(endpoint.Close());
  ExpectGoodEnd(rping);
}

}  // namespace
}  // namespace rdmad::testing
