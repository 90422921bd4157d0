// One application over one engine of its daemon, and over two: what completion vectors are worth on
// this machine.
//
//   lanes_bench [SECONDS]     per measurement, default 2
//
// Two pairs of queue pairs write to each other without a pause, 64 KiB at a time; first all on
// vector 0, then a pair on each vector. With three processors or more (one is the application's,
// which polls) the second figure should be near twice the first; with two, all three threads
// compete.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/daemon_process.h"

namespace rdmad::testing {
namespace {

constexpr char kAddress[] = "127.0.0.9";
constexpr uint32_t kBytes = WiredEnd::kMemoryBytes;
constexpr uint32_t kDepth = 16;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "lanes_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T OrFail(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

double Now() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

struct Pair {
  WiredEnd from;
  WiredEnd to;

  void Post() {
    Check(from.qp.PostWrite(1, from.memory.data(), kBytes, &from.region, kSendSignaled,
                            to.AddressAt(0), to.region.rkey()));
  }
};

Pair MakePair(const Client& client, uint32_t vector) {
  Pair pair{OrFail(MakeEnd(client, kAddress, {.comp_vector = vector})),
            OrFail(MakeEnd(client, kAddress, {.comp_vector = vector}))};
  Check(Wire(pair.from, pair.to));
  return pair;
}

// Bytes per second of both pairs together.
double Measure(const Client& client, const std::vector<uint32_t>& vectors, double seconds) {
  std::vector<Pair> pairs;
  for (const uint32_t vector : vectors) pairs.push_back(MakePair(client, vector));
  for (Pair& pair : pairs) {
    for (uint32_t i = 0; i < kDepth; ++i) pair.Post();
  }
  uint64_t done = 0;
  const double start = Now();
  double end = start;
  for (; end - start < seconds; end = Now()) {
    for (Pair& pair : pairs) {
      Wc wcs[kDepth];
      const size_t count = pair.from.cq.Poll(wcs);
      for (size_t i = 0; i < count; ++i) {
        if (wcs[i].status != WcStatus::kSuccess) Check(absl::InternalError("a write failed"));
        pair.Post();
      }
      done += count;
    }
  }
  return static_cast<double>(done) * kBytes / (end - start);
}

int Main(double seconds) {
  DaemonProcess daemon(
      {.addresses = {kAddress}, .log_level = "info", .more_config = "[engine]\ncount = 2\n"});
  Check(daemon.Start());
  const Client client = OrFail(AttachTo(daemon));
  const double one = Measure(client, {0, 0}, seconds);
  const double two = Measure(client, {0, 1}, seconds);
  std::printf("processors                %u\n", std::thread::hardware_concurrency());
  std::printf("both pairs on vector 0    %.2f GB/s\n", one / 1e9);
  std::printf("one on each of 2 vectors  %.2f GB/s  (%.2f x)\n", two / 1e9, two / one);
  return 0;
}

}  // namespace
}  // namespace rdmad::testing

int main(int argc, char** argv) {
  return rdmad::testing::Main(argc > 1 ? std::atof(argv[1]) : 2.0);
}
