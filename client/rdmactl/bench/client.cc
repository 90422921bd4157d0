#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rdmactl/bench/bench.h"
#include "client/rdmactl/bench/session.h"

namespace rdmad::rdmactl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kResolveTimeout = absl::Seconds(5);
// An operation that takes this long has failed.
constexpr absl::Duration kStall = absl::Seconds(20);
constexpr uint32_t kMaxBatch = 32;

absl::Status CheckWc(const Wc& wc) { return WcStatusToStatus(wc.status); }

// One connection that measures.
class Measurement {
 public:
  Measurement(const BenchOptions& options, BenchMemory memory) : options_(options), memory_(std::move(memory)) {}

  absl::Status Connect(const Client& client, const Address& peer) {
    absl::StatusOr<std::unique_ptr<CmId>> id = CmId::Create(client);
    if (!id.ok()) return id.status();
    id_ = std::move(id).value();
    if (absl::Status status = id_->ResolveAddr(Address(), peer, kResolveTimeout); !status.ok()) return status;
    if (absl::Status status = id_->ResolveRoute(kResolveTimeout); !status.ok()) return status;
    if (absl::Status status = id_->CreateQp(nullptr, BenchQp(options_)); !status.ok()) return status;
    if (absl::Status status = memory_.Register(*id_); !status.ok()) return status;
    qp_ = id_->qp();
    send_cq_ = qp_.send_cq();
    recv_cq_ = qp_.recv_cq();
    if (IsPingPong()) {
      if (absl::Status status = PostReceive(); !status.ok()) return status;
    }
    ConnParam param;
    param.private_data = EncodeBenchOptions(options_);
    if (absl::Status status = id_->Connect(param); !status.ok()) return status;
    if (options_.mode == BenchMode::kSend) return absl::OkStatus();
    absl::StatusOr<RemoteBuffer> target = DecodeTarget(id_->event()->param().private_data);
    if (!target.ok()) return target.status();
    target_ = *target;
    return absl::OkStatus();
  }

  absl::StatusOr<BenchResult> Run() {
    return options_.metric == BenchMetric::kLatency ? RunLatency() : RunWindow();
  }

  void Disconnect() { id_->Disconnect().IgnoreError(); }

 private:
  bool IsPingPong() const { return options_.mode == BenchMode::kSend && options_.metric == BenchMetric::kLatency; }

  absl::Status PostReceive() {
    const Sge sge = memory_.SgeAt(1);
    return qp_.PostRecvv(0, {&sge, 1});
  }

  SendWr MakeWr(const Sge* sge) const {
    SendWr wr;
    wr.sges = {sge, 1};
    wr.flags = kSendSignaled;
    if (options_.size_bytes <= kBenchInlineBytes && options_.mode != BenchMode::kRead) wr.flags |= kSendInline;
    wr.remote_addr = target_.addr;
    wr.rkey = target_.rkey;
    switch (options_.mode) {
      case BenchMode::kSend:
        wr.opcode = WrOpcode::kSend;
        break;
      case BenchMode::kWrite:
        wr.opcode = WrOpcode::kRdmaWrite;
        break;
      case BenchMode::kRead:
        wr.opcode = WrOpcode::kRdmaRead;
        break;
    }
    return wr;
  }

  // One operation from post to completion, or with sends until the answer is there.
  absl::Status OneOperation(const SendWr& wr) {
    if (absl::Status status = qp_.PostSend({&wr, 1}); !status.ok()) return status;
    Wc wc;
    if (IsPingPong()) {
      const absl::StatusOr<size_t> count = recv_cq_.Wait({&wc, 1}, kStall, options_.wait);
      if (!count.ok()) return count.status();
      if (absl::Status status = CheckWc(wc); !status.ok()) return status;
      if (absl::Status status = PostReceive(); !status.ok()) return status;
      // The send before the last has long been done; the queue only has to be told.
      std::array<Wc, 16> done;
      send_cq_.Poll(done);
      return absl::OkStatus();
    }
    const absl::StatusOr<size_t> count = send_cq_.Wait({&wc, 1}, kStall, options_.wait);
    return count.ok() ? CheckWc(wc) : count.status();
  }

  absl::StatusOr<BenchResult> RunLatency() {
    const Sge sge = memory_.SgeAt(0);
    const SendWr wr = MakeWr(&sge);
    constexpr int kWarmUps = 100;
    for (int i = 0; i < kWarmUps; ++i) {
      if (absl::Status status = OneOperation(wr); !status.ok()) return status;
    }
    std::vector<float> samples_us;
    samples_us.reserve(1 << 20);
    const auto start = Clock::now();
    const auto end = start + absl::ToChronoNanoseconds(options_.duration);
    auto before = start;
    while (before < end) {
      if (absl::Status status = OneOperation(wr); !status.ok()) return status;
      const auto after = Clock::now();
      samples_us.push_back(std::chrono::duration<float, std::micro>(after - before).count());
      before = after;
    }
    return Summarize(std::move(samples_us), std::chrono::duration<double>(before - start).count());
  }

  BenchResult Summarize(std::vector<float> samples_us, double seconds) const {
    BenchResult result;
    result.options = options_;
    result.operations = samples_us.size();
    result.seconds = seconds;
    std::sort(samples_us.begin(), samples_us.end());
    const auto at = [&](double part) {
      return samples_us[std::min(samples_us.size() - 1, static_cast<size_t>(part * static_cast<double>(samples_us.size())))];
    };
    result.min_us = samples_us.front();
    result.p50_us = at(0.5);
    result.p90_us = at(0.9);
    result.p99_us = at(0.99);
    result.p999_us = at(0.999);
    result.max_us = samples_us.back();
    result.mean_us = seconds * 1e6 / static_cast<double>(samples_us.size());
    return result;
  }

  // Keeps a window of operations under way.
  absl::StatusOr<BenchResult> RunWindow() {
    const uint32_t batch_size =
        options_.metric == BenchMetric::kRate ? std::clamp(options_.depth / 4, 1u, kMaxBatch) : 1;
    std::vector<Sge> sges(options_.depth);
    std::vector<SendWr> wrs(options_.depth);
    for (uint32_t i = 0; i < options_.depth; ++i) {
      sges[i] = memory_.SgeAt(i % options_.window_buffers());
      wrs[i] = MakeWr(&sges[i]);
      // Of small operations one in a batch makes a completion: those before it are done as well.
      if ((i + 1) % batch_size != 0 && i + 1 != options_.depth) wrs[i].flags &= ~uint32_t{kSendSignaled};
      wrs[i].wr_id = (i % batch_size) + 1;  // how many WRs a signaled one stands for
    }
    uint64_t posted = 0;
    uint64_t done = 0;
    uint64_t done_at_start = 0;
    auto start = Clock::now();
    const auto warm = start + std::chrono::milliseconds(100);
    const auto end = warm + absl::ToChronoNanoseconds(options_.duration);
    auto now = start;
    bool measuring = false;
    std::array<Wc, 64> wcs;
    while (now < end) {
      while (posted - done + batch_size <= options_.depth) {
        const uint32_t first = static_cast<uint32_t>(posted % options_.depth);
        const uint32_t count = std::min(batch_size, options_.depth - first);
        if (absl::Status status = qp_.PostSend({&wrs[first], count}); !status.ok()) return status;
        posted += count;
      }
      const absl::StatusOr<size_t> count = send_cq_.Wait(wcs, kStall, options_.wait);
      if (!count.ok()) return count.status();
      for (size_t i = 0; i < *count; ++i) {
        if (absl::Status status = CheckWc(wcs[i]); !status.ok()) return status;
        done += wcs[i].wr_id;
      }
      now = Clock::now();
      if (!measuring && now >= warm) {
        measuring = true;
        start = now;
        done_at_start = done;
      }
    }
    BenchResult result;
    result.options = options_;
    result.operations = done - done_at_start;
    result.seconds = std::chrono::duration<double>(now - start).count();
    result.mean_us = result.operations == 0 ? 0 : result.seconds * 1e6 / static_cast<double>(result.operations);
    return result;
  }

  const BenchOptions options_;
  BenchMemory memory_;
  std::unique_ptr<CmId> id_;
  QueuePair qp_;
  CompletionQueue send_cq_;
  CompletionQueue recv_cq_;
  RemoteBuffer target_;
};

}  // namespace

absl::StatusOr<BenchResult> RunBenchClient(const Client& client, const Address& peer, const BenchOptions& options) {
  const uint32_t buffers = options.metric == BenchMetric::kLatency ? 2 : options.window_buffers();
  absl::StatusOr<BenchMemory> memory = BenchMemory::Create(client, options.size_bytes, buffers);
  if (!memory.ok()) return memory.status();
  Measurement measurement(options, std::move(memory).value());
  if (absl::Status status = measurement.Connect(client, peer); !status.ok()) return status;
  absl::StatusOr<BenchResult> result = measurement.Run();
  if (result.ok()) measurement.Disconnect();
  return result;
}

}  // namespace rdmad::rdmactl
