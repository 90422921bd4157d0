#include "tests/integration/testbed.h"

#include <stdlib.h>
#include <unistd.h>

#include <future>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "tests/support/net_namespace.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(20);

// A verbs device for a daemon.
struct VerbsBed {
  std::string device;
  std::string ipv4;
  std::string ipv6;
};

// Two or none.
const std::vector<VerbsBed>& VerbsBeds() {
  static const std::vector<VerbsBed> beds = [] {
    std::vector<VerbsBed> read;
    const char* text = ::getenv("RDMAD_TEST_VERBS");
    if (text == nullptr || *text == '\0') return read;
    for (const absl::string_view one : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      const std::vector<std::string> parts = absl::StrSplit(one, ',');
      RD_CHECK(parts.size() == 3, "RDMAD_TEST_VERBS: NAME,IPV4,IPV6 NAME,IPV4,IPV6");
      read.push_back({parts[0], parts[1], parts[2]});
    }
    RD_CHECK(read.size() == 2, "RDMAD_TEST_VERBS names two devices");
    return read;
  }();
  return beds;
}

bool HasPrivateNetwork() {
  return VerbsBeds().empty() && EnterPrivateNetwork().ok();
}

// The loopback interface of the private network gets the IPv6 addresses of LoopbackTest.
bool AddLoopbackIpv6() {
  if (!HasPrivateNetwork()) return false;
  for (const char* address : {"fd00::2/128", "fd00::3/128"}) {
    const absl::StatusOr<ProgramResult> result =
        RunProgram({"ip", "addr", "add", address, "dev", "lo", "nodad"});
    if (!result.ok() || !result->ok()) return false;
  }
  return true;
}

bool HasLoopbackIpv6() {
  static const bool has = AddLoopbackIpv6();
  return has;
}

}  // namespace

absl::StatusOr<Client> AttachTo(const DaemonProcess& daemon, const std::string& name) {
  AttachOptions options;
  options.run_dir = daemon.run_dir();
  options.name = name;
  options.deadline = Slow(absl::Seconds(5));
  return Client::Attach(options);
}

std::string WithPort(const std::string& address, uint16_t port) {
  return address.find(':') == std::string::npos ? absl::StrCat(address, ":", port)
                                                : absl::StrCat("[", address, "]:", port);
}

absl::StatusOr<Connection> ConnectApps(const Client& from, const Client& to,
                                       const std::string& address, const EndpointOptions& active,
                                       const EndpointOptions& passive) {
  RD_ASSIGN_OR_RETURN(Listener listener, Listener::Listen(to, WithPort(address, 0), passive));
  auto accepting =
      std::async(std::launch::async, [&] { return listener.Accept(Slow(kConnectTimeout)); });
  absl::StatusOr<Endpoint> connected =
      Endpoint::Connect(from, WithPort(address, listener.local_addr().port), active);
  absl::StatusOr<Endpoint> accepted = accepting.get();
  if (!connected.ok()) return connected.status();
  if (!accepted.ok()) return accepted.status();
  return Connection{std::move(connected).value(), std::move(accepted).value()};
}

bool Eventually(absl::Duration timeout, const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + Slow(timeout);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

absl::StatusOr<AsyncEvent> NextEvent(Client client, uint32_t type, absl::Duration timeout) {
  while (true) {
    absl::StatusOr<AsyncEvent> event = client.GetAsyncEvent(Slow(timeout));
    if (!event.ok() || event->type == type) return event;
  }
}

absl::StatusOr<std::string> CountObjects(const RawClient& observer) {
  v1::GetStatusReply reply;
  RD_RETURN_IF_ERROR(observer.Call(observer.admin(), &v1::AdminService::Stub::GetStatus,
                                   v1::GetStatusRequest(), &reply));
  std::string devices;
  for (const v1::DeviceStatus& device : reply.devices()) {
    absl::StrAppend(&devices, " ", device.device().name(), ":qps=", device.qps());
  }
  return absl::StrCat("sessions=", reply.sessions(), " ", reply.objects().ShortDebugString(),
                      devices);
}

void LoopbackTest::SetUpTestSuite() {
  (void)HasPrivateNetwork();
  (void)HasLoopbackIpv6();
}

bool LoopbackTest::OnVerbs() {
  return !VerbsBeds().empty();
}

uint32_t LoopbackTest::Engines() {
  const char* text = ::getenv("RDMAD_TEST_ENGINES");
  uint32_t count = 1;
  RD_CHECK(text == nullptr || absl::SimpleAtoi(text, &count), "RDMAD_TEST_ENGINES: a number");
  return count;
}

std::string LoopbackTest::Ipv4(int index) {
  if (OnVerbs()) return VerbsBeds()[static_cast<size_t>(index)].ipv4;
  if (HasPrivateNetwork()) return absl::StrCat("127.0.0.", 2 + index);
  // The host's loopback is everybody's: each process takes two addresses that others do not.
  const int pid = ::getpid();
  return absl::StrCat("127.", 100 + pid / 250 % 100, ".", 1 + pid % 250, ".", 2 + index);
}

std::string LoopbackTest::Ipv6(int index) {
  if (OnVerbs()) return VerbsBeds()[static_cast<size_t>(index)].ipv6;
  return HasLoopbackIpv6() ? absl::StrCat("fd00::", 2 + index) : "";
}

DaemonProcess& LoopbackTest::Daemon(int index, DaemonOptions options) {
  if (daemons_[index] == nullptr) {
    if (OnVerbs()) {
      // Each daemon has both: the kernel's route from one of its addresses to itself leads over the
      // other device, if it is to go by wire.
      for (const VerbsBed& bed : VerbsBeds()) options.verbs_devices.push_back(bed.device);
    } else if (options.addresses.empty()) {
      options.addresses = {Ipv4(index)};
      if (HasLoopbackIpv6()) options.addresses.push_back(Ipv6(index));
    }
    if (Engines() > 1) {
      absl::StrAppend(&options.more_config, "[engine]\ncount = ", Engines(), "\n");
    }
    daemons_[index] = std::make_unique<DaemonProcess>(std::move(options));
  }
  return *daemons_[index];
}

absl::Status LoopbackTest::StartDaemon(int index, const DaemonOptions& options) {
  return Daemon(index, options).Start();
}

void TwoHostsTest::SetUpTestSuite() {
  (void)HasPrivateNetwork();
}

bool TwoHostsTest::Start(const TwoHostsOptions& options, const std::string& log_level) {
  if (!HasPrivateNetwork()) {
    [] {
      if (!VerbsBeds().empty()) GTEST_SKIP() << "hosts are network namespaces, of the soft device";
      GTEST_SKIP() << EnterPrivateNetwork().message();
    }();
    return false;
  }
  // Of an earlier call.
  for (auto& client : clients_) client.reset();
  for (auto& daemon : daemons_) daemon.reset();
  [&] {
    ASSERT_OK_AND_ASSIGN(hosts_, TwoHosts::Create(options));
    for (int i = 0; i < 2; ++i) {
      daemons_[i] = std::make_unique<DaemonProcess>(
          DaemonOptions{.addresses = {TwoHosts::Ipv4(i), TwoHosts::Ipv6(i)},
                        .network = &hosts_->host(i),
                        .log_level = log_level});
      ASSERT_OK(daemons_[i]->Start());
      ASSERT_OK_AND_ASSIGN(Client client, AttachTo(*daemons_[i], absl::StrCat("app", i)));
      clients_[i] = std::make_unique<Client>(std::move(client));
    }
  }();
  return !HasFatalFailure();
}

}  // namespace rdmad::testing
