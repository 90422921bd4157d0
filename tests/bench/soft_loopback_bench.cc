// Two soft devices in one process, an engine thread each, over real sockets on 127.0.0.2 and
// 127.0.0.3: what the transport and its ports can do without clients, rings and a control thread.
//
//   soft_loopback_bench [SECONDS]     per measurement, default 1
//
// Prints for each kind of message: rate, bytes per second, and per gigabyte or per message the
// system calls, the packets lost in full socket buffers, and the share of a processor that each
// thread spent.
#include <sched.h>
#include <time.h>

#include <atomic>
#include <barrier>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "daemon/device/device.h"
#include "tests/device/soft/soft_host.h"

namespace rdmad::soft::testing {
namespace {

constexpr uint16_t kPort = 4790;  // beside whatever has the real one

struct Case {
  const char* name;
  device::WrOpcode opcode;
  uint32_t bytes;
  uint32_t depth;
  device::Mtu mtu;
};

constexpr Case kCases[] = {
    {"WRITE 1 MiB", device::WrOpcode::kRdmaWrite, 1 << 20, 8, device::Mtu::k4096},
    {"READ 1 MiB", device::WrOpcode::kRdmaRead, 1 << 20, 8, device::Mtu::k4096},
    {"WRITE 1 MiB, MTU 1024", device::WrOpcode::kRdmaWrite, 1 << 20, 8, device::Mtu::k1024},
    {"WRITE 64 KiB", device::WrOpcode::kRdmaWrite, 64 << 10, 32, device::Mtu::k4096},
    {"WRITE 4 KiB", device::WrOpcode::kRdmaWrite, 4 << 10, 128, device::Mtu::k4096},
    {"WRITE 64 B", device::WrOpcode::kRdmaWrite, 64, 128, device::Mtu::k4096},
    {"WRITE 64 B, one at a time", device::WrOpcode::kRdmaWrite, 64, 1, device::Mtu::k4096},
};

double ThreadCpuSeconds() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // On a machine with fewer processors it runs where it may.
  ::sched_setaffinity(0, sizeof(set), &set);
}

struct SideResult {
  double cpu = 0;
  uint64_t syscalls = 0;
  uint64_t drops = 0;
  uint64_t icrc = 0;
  uint64_t retransmitted = 0;
};

struct Run {
  std::barrier<> step{2};
  std::optional<RcEnd>* left = nullptr;
  std::optional<RcEnd>* right = nullptr;
  std::atomic<bool> stop{false};
};

uint64_t Syscalls(SoftHost& host) {
  return host.Counter("udp_rx_syscalls") + host.Counter("udp_tx_syscalls");
}

void Finish(SoftHost& host, double cpu_before, uint64_t syscalls_before, SideResult* result) {
  result->cpu = ThreadCpuSeconds() - cpu_before;
  result->syscalls = Syscalls(host) - syscalls_before;
  result->drops = host.Counter("udp_rx_socket_full");
  result->icrc = host.Counter("udp_rx_drop_icrc");
  result->retransmitted = host.SharedCounter("retransmitted_packets");
}

void Passive(Run& run, const Case& one, SideResult* result) {
  PinTo(1);
  SoftHost host({"127.0.0.3"}, kPort);
  run.right->emplace(host, one.bytes);
  run.step.arrive_and_wait();
  (*run.right)->ConnectTo(**run.left, one.mtu);
  run.step.arrive_and_wait();
  const double cpu = ThreadCpuSeconds();
  const uint64_t syscalls = Syscalls(host);
  while (!run.stop.load(std::memory_order_relaxed)) host.Turn();
  Finish(host, cpu, syscalls, result);
  run.step.arrive_and_wait();
  run.right->reset();
}

uint64_t Active(Run& run, const Case& one, device::TimeNs duration, SideResult* result) {
  PinTo(0);
  SoftHost host({"127.0.0.2"}, kPort);
  RcEnd& end = run.left->emplace(host, one.bytes);
  run.step.arrive_and_wait();
  RcEnd& peer = **run.right;
  end.ConnectTo(peer, one.mtu);
  end.sends.all.reserve(1 << 24);
  run.step.arrive_and_wait();
  const double cpu = ThreadCpuSeconds();
  const uint64_t syscalls = Syscalls(host);
  const device::TimeNs end_time = MonotonicNow() + duration;
  uint64_t posted = 0;
  while (MonotonicNow() < end_time) {
    while (posted - end.sends.all.size() < one.depth) {
      if (end.Send(one.opcode, 0, one.bytes, &peer) != device::PostResult::kOk) std::abort();
      ++posted;
    }
    host.Turn();
  }
  const uint64_t done = end.sends.all.size();
  run.stop.store(true, std::memory_order_relaxed);
  Finish(host, cpu, syscalls, result);
  for (const device::Wc& wc : end.sends.all) {
    if (wc.status != device::WcStatus::kSuccess)
      std::printf("  a WR ended with status %d\n", static_cast<int>(wc.status));
  }
  run.step.arrive_and_wait();
  run.left->reset();
  return done;
}

void Measure(const Case& one, double seconds) {
  std::optional<RcEnd> left, right;
  Run run;
  run.left = &left;
  run.right = &right;
  SideResult active, passive;
  uint64_t done = 0;
  std::thread other([&] { Passive(run, one, &passive); });
  std::thread self(
      [&] { done = Active(run, one, static_cast<device::TimeNs>(seconds * 1e9), &active); });
  self.join();
  other.join();
  const auto count = static_cast<double>(done);
  std::printf(
      "%-26s %8.2f GB/s %10.0f msg/s %7.2f us/msg  syscalls/msg %6.2f + %6.2f  cpu %3.0f%% + "
      "%3.0f%%  "
      "socket drops %" PRIu64 "+%" PRIu64 "  resent %" PRIu64 "+%" PRIu64 "  bad icrc %" PRIu64
      "\n",
      one.name, count * one.bytes / seconds / 1e9, count / seconds, seconds * 1e6 / count,
      static_cast<double>(active.syscalls) / count, static_cast<double>(passive.syscalls) / count,
      active.cpu / seconds * 100, passive.cpu / seconds * 100, active.drops, passive.drops,
      active.retransmitted, passive.retransmitted, active.icrc + passive.icrc);
  std::fflush(stdout);
}

}  // namespace
}  // namespace rdmad::soft::testing

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const std::string only = argc > 2 ? argv[2] : "";
  for (const auto& one : rdmad::soft::testing::kCases) {
    if (only.empty() || std::string(one.name) == only) rdmad::soft::testing::Measure(one, seconds);
  }
  return 0;
}
