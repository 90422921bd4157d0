// What one work request costs on its way through the rings: posted by a client, picked up by the
// engine, handed to a device that completes it at once, completed into the client's CQ, polled.
//
//   batched       one thread plays both sides, so the figure is the sum of their work without
//   waiting:
//                 client (post, ring, poll) and engine (turn) are timed apart
//   two threads   the engine in its thread, a window of sends kept full: what a client sees
//   round trip    the engine in its thread, one send at a time, polled
//
// Usage: engine_bench [WRs]
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

device::TimeNs Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return device::TimeNs{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A QP that completes a send as soon as it is posted.
class InstantQp final : public device::Qp {
 public:
  explicit InstantQp(device::CompletionSink* sink) : sink_(sink) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  uint32_t qpn() const noexcept override { return 2; }
  const device::QpCap& cap() const noexcept override { return cap_; }
  device::PostResult PostSend(const device::SendWr& wr, device::TimeNs) noexcept override {
    ++done_;
    if ((wr.flags & shm::kWorkSignaled) == 0) return device::PostResult::kOk;
    device::Wc wc{};
    wc.wr_id = wr.wr_id;
    wc.qpn = 2;
    wc.wqe_count = done_;
    sink_->OnCompletion(wc);
    return device::PostResult::kOk;
  }
  device::PostResult PostRecv(const device::RecvWr&, device::TimeNs) noexcept override {
    return device::PostResult::kOk;
  }
  device::QpResult Modify(const device::QpAttr&, device::TimeNs) noexcept override {
    return device::QpResult::kOk;
  }
  device::QpAttr Query() const noexcept override { return {}; }
  bool same_daemon() const noexcept override { return true; }

 private:
  device::CompletionSink* const sink_;
  const device::QpCap cap_;
  uint32_t done_ = 0;
};

constexpr uint32_t kDepth = 256;

// One client with one QP and one CQ with a channel, as programs have it.
class Bench {
 public:
  Bench() : channel(bed, session), cq(bed, session, 2 * kDepth, &channel), qp(cq.port.get()) {
    QueuePairPortInit init;
    init.session = session.port.get();
    init.qp = &qp;
    init.send_cq = init.recv_cq = cq.port.get();
    init.send_ring = {memory.data(), kDepth};
    port = bed.proxy().CreateQueuePairPort(init);
    bed.Activate(*port);
  }
  ~Bench() { bed.Deactivate(*port); }

  bool Post(uint64_t id, uint8_t flags) {
    const shm::WorkSge sge{id, 64, 1};
    sdk::SendRequest request;
    request.wr_id = id;
    request.flags = flags;
    request.opcode = shm::WorkOpcode::kRdmaWrite;
    request.sges = std::span(&sge, 1);
    return writer.PostSend(request) == 0;
  }
  void Ring() {
    writer.Publish();
    ringer.Ring(0);
  }
  size_t Poll() {
    shm::Cqe cqes[32];
    const size_t count = cq.reader.Poll(cqes);
    if (count != 0) writer.RetireUpTo(cqes[count - 1].wqe_count);
    return count;
  }

  EngineBed bed;
  TestSession session{bed};
  TestChannel channel;
  TestCq cq;
  InstantQp qp;
  RingMemory memory{shm::WorkQueueBytes(kDepth)};
  sdk::WorkQueueWriter writer{
      reinterpret_cast<shm::WorkQueueHeader*>(memory.data()), kDepth, {kDepth, 4, 64}};
  const sdk::DoorbellRinger ringer = session.ringer();
  std::unique_ptr<QueuePairPort> port;
};

struct Cost {
  double client_ns;
  double engine_ns;
};

Cost MeasureBatched(Bench& bench, uint64_t wrs, uint32_t batch) {
  device::TimeNs client_ns = 0;
  device::TimeNs engine_ns = 0;
  uint64_t done = 0;
  while (done < wrs) {
    const device::TimeNs start = Now();
    for (uint32_t i = 0; i < batch; ++i) bench.Post(done + i, shm::kWorkSignaled);
    bench.Ring();
    const device::TimeNs posted = Now();
    uint64_t left = batch;
    while (left != 0) {
      left -= std::min<uint64_t>(left, static_cast<uint64_t>(bench.bed.engine().DoWork(posted)));
    }
    const device::TimeNs worked = Now();
    uint64_t polled = 0;
    while (polled < batch) polled += bench.Poll();
    client_ns += posted - start + Now() - worked;
    engine_ns += worked - posted;
    done += batch;
  }
  return {static_cast<double>(client_ns) / static_cast<double>(done),
          static_cast<double>(engine_ns) / static_cast<double>(done)};
}

// The best of many slices: what else the machine does only ever adds.
void RunBatched(uint64_t wrs, uint32_t batch) {
  constexpr int kSlices = 50;
  Bench bench;
  Cost best{1e9, 1e9};
  for (int slice = 0; slice < kSlices; ++slice) {
    const Cost cost = MeasureBatched(bench, wrs / kSlices + 1, batch);
    if (cost.client_ns + cost.engine_ns < best.client_ns + best.engine_ns) best = cost;
  }
  std::printf("batched       batch=%-4u client_ns=%-7.1f engine_ns=%-7.1f ns_per_wr=%.1f\n", batch,
              best.client_ns, best.engine_ns, best.client_ns + best.engine_ns);
}

void RunTwoThreads(uint64_t wrs, uint32_t batch) {
  Bench bench;
  bench.bed.Start();
  const device::TimeNs start = Now();
  uint64_t posted = 0;
  uint64_t done = 0;
  while (done < wrs) {
    uint32_t count = 0;
    while (count < batch && posted < wrs && bench.Post(posted, shm::kWorkSignaled)) {
      ++posted;
      ++count;
    }
    if (count != 0) bench.Ring();
    const size_t polled = bench.Poll();
    done += polled;
    if (count == 0 && polled == 0) sched_yield();
  }
  const device::TimeNs elapsed = Now() - start;
  std::printf("two threads   batch=%-4u ns_per_wr=%.1f\n", batch,
              static_cast<double>(elapsed) / static_cast<double>(done));
}

void RunRoundTrip(uint64_t wrs) {
  Bench bench;
  bench.bed.Start();
  std::vector<device::TimeNs> times;
  times.reserve(wrs);
  for (uint64_t id = 0; id < wrs; ++id) {
    const device::TimeNs start = Now();
    bench.Post(id, shm::kWorkSignaled);
    bench.Ring();
    while (bench.Poll() == 0) {
    }
    times.push_back(Now() - start);
  }
  std::sort(times.begin(), times.end());
  std::printf("round trip    median_ns=%lld p99_ns=%lld\n",
              static_cast<long long>(times[times.size() / 2]),
              static_cast<long long>(times[times.size() * 99 / 100]));
}

}  // namespace
}  // namespace rdmad::engine

int main(int argc, char** argv) {
  const uint64_t wrs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2'000'000;
  if (wrs == 0) {
    std::fprintf(stderr, "usage: engine_bench [WRs]\n");
    return 2;
  }
  for (const uint32_t batch : {1u, 4u, 16u, 32u, 128u}) rdmad::engine::RunBatched(wrs, batch);
  for (const uint32_t batch : {1u, 16u, 64u}) rdmad::engine::RunTwoThreads(wrs, batch);
  rdmad::engine::RunRoundTrip(wrs / 10 + 1);
  return 0;
}
