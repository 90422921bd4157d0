// What the integration tests have in common: daemons on addresses of the test's own, applications
// that attach to them, and connections between two applications.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/rdmad.h"
#include "tests/support/daemon_process.h"
#include "tests/support/two_hosts.h"

namespace rdmad::testing {

// tests/support/raw_client.h, which takes gRPC along: for those who use one.
class RawClient;

// An application of this process, attached to `daemon`.
absl::StatusOr<Client> AttachTo(const DaemonProcess& daemon, const std::string& name = "app");

// "[fd77::1]:80" or "127.0.0.1:80".
std::string WithPort(const std::string& address, uint16_t port);

// Two ends in this process.
struct Connection {
  Endpoint active;
  Endpoint passive;
};

// Listens in `to` on a free port of `address`, connects from `from` and accepts.
absl::StatusOr<Connection> ConnectApps(const Client& from, const Client& to,
                                       const std::string& address,
                                       const EndpointOptions& active = {},
                                       const EndpointOptions& passive = {});

// True as soon as `condition` holds; false if it does not within `timeout` (Slow() applies).
bool Eventually(absl::Duration timeout, const std::function<bool()>& condition);

// The next asynchronous event of this type (AsyncEventType); others are passed over. Errors: those of
// GetAsyncEvent.
absl::StatusOr<AsyncEvent> NextEvent(Client client, uint32_t type,
                                     absl::Duration timeout = absl::Seconds(5));

// Everything that the daemon counts of objects, as text to be compared and printed: sessions, PDs,
// regions, pools, CQs, QPs, channels, CM ids, and QPs by device. Errors: those of the call.
absl::StatusOr<std::string> CountObjects(const RawClient& observer);

// Up to two daemons on two loopback addresses; if possible in a network of the test's own with IPv6
// addresses as well.
//
// These cases are the conformance suite: what holds on the soft device must hold on a verbs device.
// With RDMAD_TEST_VERBS="NAME,IPV4,IPV6 NAME,IPV4,IPV6" both daemons serve these two verbs
// devices instead (tests/vm). docs/conformance.md lists the cases that differ, and why.
//
// With RDMAD_TEST_ENGINES=N each daemon has N engines, over which its sessions are spread.
class LoopbackTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static bool OnVerbs();
  // Of a daemon.
  static uint32_t Engines();

  // Daemon 0 or 1; made, but not started.
  DaemonProcess& Daemon(int index, DaemonOptions options = {});
  // Starts it if need be.
  absl::Status StartDaemon(int index, const DaemonOptions& options = {});

  static std::string Ipv4(int index);
  // Empty where the test has no IPv6 address.
  static std::string Ipv6(int index);

 private:
  std::unique_ptr<DaemonProcess> daemons_[2];
};

// Two daemons in two network namespaces. Start() skips or fails the test by itself.
class TwoHostsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();

  // False: the test is to end.
  [[nodiscard]] bool Start(const TwoHostsOptions& options, const std::string& log_level = "info");

  TwoHosts& hosts() { return *hosts_; }
  DaemonProcess& Daemon(int index) { return *daemons_[index]; }
  // An application on each host.
  const Client& client(int index) const { return *clients_[index]; }

 private:
  std::unique_ptr<TwoHosts> hosts_;
  std::unique_ptr<DaemonProcess> daemons_[2];
  std::unique_ptr<Client> clients_[2];
};

}  // namespace rdmad::testing
