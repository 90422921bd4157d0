#include "tests/vm/rxe_bed.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "daemon/base/status_macros.h"
#include "tests/control/http.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"
#include "tests/support/tools.h"

namespace rdmad::testing {
namespace {

constexpr char kMetrics[] = "127.0.0.1:9464";  // in "peer"

}  // namespace

Mtu OnTheBed(Mtu wanted) {
  // Ethernet's own MTU is for path MTU 1024; what two_hosts has else is enough for 4096.
  static const Mtu largest = std::atoi(ReadFile("/sys/class/net/vA/mtu").c_str()) < 4096 ? Mtu::k1024 : Mtu::k4096;
  return std::min(wanted, largest);
}

size_t InOnePacket(size_t wanted) { return std::min<size_t>(wanted, MtuBytes(OnTheBed(Mtu::k4096))); }

std::string WithPort(const std::string& address, int port) {
  return address.find(':') == std::string::npos ? absl::StrCat(address, ":", port)
                                                : absl::StrCat("[", address, "]:", port);
}

InPeer::InPeer()
    : before_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)),
      peer_(::open("/run/netns/peer", O_RDONLY | O_CLOEXEC)) {
  entered_ = peer_.valid() && ::setns(peer_.get(), CLONE_NEWNET) == 0;
}

InPeer::~InPeer() { EXPECT_EQ(::setns(before_.get(), CLONE_NEWNET), 0); }

RxeBed& RxeBed::Get() {
  static RxeBed* bed = static_cast<RxeBed*>(::testing::AddGlobalTestEnvironment(new RxeBed));
  return *bed;
}

bool RxeBed::IsInGuest() { return ::access("/run/netns/peer", F_OK) == 0; }

void RxeBed::SetUp() {
  if (!IsInGuest()) return;
  {
    const InPeer peer;
    ASSERT_TRUE(peer.entered());
    daemon_.emplace(DaemonOptions{.addresses = {kIpv4.ours, kIpv6.ours}, .metrics = kMetrics});
    // Start() knows nothing of emulation on a busy machine.
    absl::Status started;
    for (int i = 0; i < 3 && !(started = daemon_->Start()).ok(); ++i) continue;
    ASSERT_OK(started);
  }
  AttachOptions options;
  options.run_dir = daemon_->run_dir();
  options.deadline = kPatience;
  ASSERT_OK_AND_ASSIGN(Client client, Client::Attach(options));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client, 4 << 20));
  client_.emplace(std::move(client));
  pool_.emplace(std::move(pool));
}

void RxeBed::TearDown() {
  pool_.reset();
  client_.reset();
  daemon_.reset();
}

std::string RxeInterop::WhatRdmadCounted() {
  const InPeer peer;
  std::string counted;
  const std::string metrics = HttpGet(kMetrics, "/metrics");
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    if (absl::StartsWith(line, "rdmad_soft_") && !absl::EndsWith(line, " 0")) absl::StrAppend(&counted, line, "\n");
  }
  return counted;
}

void RxeInterop::SetUp() {
  if (!RxeBed::IsInGuest()) {
    GTEST_SKIP() << "needs a guest with the set-up two_hosts: run the vm_test of this program in //tests/vm";
  }
  ASSERT_TRUE(RxeBed::Get().stands());
}

void RxeInterop::TearDown() {
  if (HasFailure() && RxeBed::Get().stands()) {
    std::cerr << "==== output of the kernel's program\n"
              << ReadFile(output_file()) << "==== log of rdmad\n"
              << LastLines(RxeBed::Get().daemon().Log(), 60) << "==== counted by rdmad\n"
              << WhatRdmadCounted() << "====\n";
  }
}

absl::StatusOr<ChildProcess> RxeInterop::StartKernel(const std::string& command_line) {
  std::vector<std::string> argv = absl::StrSplit(command_line, ' ');
  // Looking for a program starts a shell, which takes its time here.
  static std::map<std::string, std::string>& programs = *new std::map<std::string, std::string>;
  std::string& program = programs[argv[0]];
  if (program.empty()) {
    RD_ASSIGN_OR_RETURN(program, FindTool(argv[0]));
  }
  argv[0] = program;
  ProcessOptions options;
  options.output_file = output_file();
  return ChildProcess::Start(argv, options);
}

absl::StatusOr<Endpoint> RxeInterop::Connect(const std::string& peer) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (true) {
    absl::StatusOr<Endpoint> endpoint = Endpoint::Connect(client(), peer);
    if (endpoint.ok() || !absl::IsAborted(endpoint.status()) || absl::Now() > deadline) return endpoint;
    absl::SleepFor(absl::Milliseconds(100));
  }
}

void RxeInterop::ExpectGoodEnd(ChildProcess& process) {
  const std::optional<ExitStatus> ended = process.Wait(kPatience);
  ASSERT_TRUE(ended.has_value()) << "the kernel's program does not end";
  EXPECT_TRUE(ended->ok()) << ended->ToString();
}

}  // namespace rdmad::testing
