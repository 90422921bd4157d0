// Idle is idle: with 100 applications attached that do nothing, no thread of rdmad wakes up.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <iostream>
#include <vector>

#include "tests/control/daemon_bed.h"

namespace rdmad::testing {
namespace {

constexpr int kClients = 100;

TEST(Idle, HundredAttachedClientsCostNothing) {
  // The gRPC of this process, which plays all clients, would read what is left of one connection
  // every 5 s, and the daemon would be told each time that there is room to write.
  setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "0", 1);
  DaemonOptions options = OwnDaemon();
  options.metrics = OwnAddress() + ":0";
  options.log_level = "warn";
  DaemonProcess daemon(options);
  ASSERT_OK(daemon.Start());
  ASSERT_OK_AND_ASSIGN(const ProcessUse empty, daemon.Use());
  std::vector<RawClient> clients;
  for (int i = 0; i < kClients; ++i) {
    ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Attach(daemon.run_dir()));
    v1::AllocPdReply pd;
    ASSERT_OK(
        client.Call(client.verbs(), &v1::VerbsService::Stub::AllocPd, v1::AllocPdRequest(), &pd));
    v1::CreateCqRequest request;
    request.set_depth(16);
    v1::CreateCqReply cq;
    ASSERT_OK(client.Call(client.verbs(), &v1::VerbsService::Stub::CreateCq, request, &cq));
    clients.push_back(std::move(client));
  }
  // What the clients' arrival has left to do (they read late, time-outs of the attach socket run
  // out) is over soon; what is periodic never is.
  ProcessUse before;
  ProcessUse after;
  for (int window = 0; window < 6; ++window) {
    ASSERT_OK_AND_ASSIGN(before, daemon.Use());
    absl::SleepFor(absl::Seconds(5));
    ASSERT_OK_AND_ASSIGN(after, daemon.Use());
    if (after.voluntary_switches == before.voluntary_switches) break;
  }
  std::cout << "descriptors per client: " << (after.descriptors - empty.descriptors) / kClients
            << ", resident KiB per client: "
            << (after.rss_bytes - empty.rss_bytes) / 1024 / kClients << " (shared "
            << (after.shared_bytes - empty.shared_bytes) / 1024 / kClients << ")\n";
  EXPECT_EQ(after.voluntary_switches - before.voluntary_switches, 0);
  EXPECT_LE(after.cpu - before.cpu, absl::Milliseconds(10)) << "0.2 % of a core";
}

}  // namespace
}  // namespace rdmad::testing
