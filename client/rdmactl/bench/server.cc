#include <array>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rdmactl/bench/bench.h"
#include "client/rdmactl/bench/session.h"

namespace rdmad::rdmactl {
namespace {

// Memory that one measurement may ask for.
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr uint32_t kMaxDepth = 8192;

// The other end of one measurement.
class Service {
 public:
  Service(std::unique_ptr<CmId> id, const BenchOptions& options, BenchMemory memory)
      : id_(std::move(id)), options_(options), memory_(std::move(memory)) {}

  absl::Status Accept() {
    if (absl::Status status = id_->CreateQp(nullptr, BenchQp(options_)); !status.ok()) return status;
    if (absl::Status status = memory_.Register(*id_); !status.ok()) return status;
    qp_ = id_->qp();
    ConnParam param;
    if (options_.mode == BenchMode::kSend) {
      // Nobody looks at what arrives: several receives share a buffer.
      for (uint32_t i = 0; i < BenchReceives(options_); ++i) {
        if (absl::Status status = PostReceive(i % options_.depth); !status.ok()) return status;
      }
    } else {
      absl::StatusOr<MemoryRegion> target = options_.mode == BenchMode::kWrite
                                                ? id_->RegWrite(memory_.buffer().data(), options_.size_bytes)
                                                : id_->RegRead(memory_.buffer().data(), options_.size_bytes);
      if (!target.ok()) return target.status();
      target_ = std::move(target).value();
      param.private_data = EncodeTarget(Endpoint::Describe(target_));
    }
    return id_->Accept(param);
  }

  // Until the peer has enough: then the QP is flushed.
  absl::Status Serve() {
    if (options_.mode != BenchMode::kSend) {
      // Nothing but the end is to be heard of, and it comes as the flush of this receive.
      if (absl::Status status = PostReceive(0); !status.ok()) return status;
    }
    const bool answers = options_.mode == BenchMode::kSend && options_.metric == BenchMetric::kLatency;
    CompletionQueue recv_cq = qp_.recv_cq();
    CompletionQueue send_cq = qp_.send_cq();
    // Whoever only opens its memory has nothing to hurry for.
    const WaitStyle wait = options_.mode == BenchMode::kSend ? options_.wait : WaitStyle::kBlocking;
    std::array<Wc, 64> wcs;
    std::array<RecvWr, 64> wrs;
    std::array<Sge, 64> sges;
    while (true) {
      const absl::StatusOr<size_t> count = recv_cq.Wait(wcs, absl::InfiniteDuration(), wait);
      if (!count.ok()) return count.status();
      for (size_t i = 0; i < *count; ++i) {
        if (wcs[i].status == WcStatus::kWrFlushErr) return absl::OkStatus();
        if (absl::Status status = WcStatusToStatus(wcs[i].status); !status.ok()) return status;
        const uint32_t index = static_cast<uint32_t>(wcs[i].wr_id);
        sges[i] = memory_.SgeAt(index);
        wrs[i] = {index, {&sges[i], 1}};
      }
      if (answers) {
        for (size_t i = 0; i < *count; ++i) {
          if (absl::Status status = Answer(sges[i]); !status.ok()) return status;
        }
        std::array<Wc, 16> done;
        send_cq.Poll(done);
      }
      if (absl::Status status = qp_.PostRecv({wrs.data(), *count}); !status.ok()) return status;
    }
  }

 private:
  absl::Status PostReceive(uint32_t index) {
    const Sge sge = memory_.SgeAt(index);
    return qp_.PostRecvv(index, {&sge, 1});
  }

  absl::Status Answer(const Sge& sge) {
    uint32_t flags = kSendSignaled;
    if (options_.size_bytes <= kBenchInlineBytes) flags |= kSendInline;
    return qp_.PostSendv(0, {&sge, 1}, flags);
  }

  std::unique_ptr<CmId> id_;
  const BenchOptions options_;
  BenchMemory memory_;
  QueuePair qp_;
  MemoryRegion target_;
};

absl::Status ServeOne(const Client& client, std::unique_ptr<CmId> id) {
  absl::StatusOr<BenchOptions> options = DecodeBenchOptions(id->event()->param().private_data);
  if (!options.ok()) return options.status();
  const uint32_t buffers = options->mode == BenchMode::kSend ? options->depth : 1;
  if (options->depth > kMaxDepth || uint64_t{options->size_bytes} * buffers > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("bench: depth=", options->depth, " size_bytes=", options->size_bytes,
                                                   ": more than this side gives"));
  }
  absl::StatusOr<BenchMemory> memory = BenchMemory::Create(client, options->size_bytes, buffers);
  if (!memory.ok()) return memory.status();
  Service service(std::move(id), *options, std::move(memory).value());
  if (absl::Status status = service.Accept(); !status.ok()) return status;
  return service.Serve();
}

}  // namespace

absl::Status ServeBench(const Client& client, const Address& address, bool once,
                        const std::function<void(const Address&)>& on_listening) {
  absl::StatusOr<std::unique_ptr<CmId>> listener = CmId::Create(client);
  if (!listener.ok()) return listener.status();
  if (absl::Status status = (*listener)->BindAddr(address); !status.ok()) return status;
  if (absl::Status status = (*listener)->Listen(); !status.ok()) return status;
  on_listening((*listener)->local_addr());
  while (true) {
    absl::StatusOr<std::unique_ptr<CmId>> id = (*listener)->GetRequest();
    if (!id.ok()) return id.status();
    const absl::Status status = ServeOne(client, std::move(id).value());
    if (once || absl::IsUnavailable(status)) return status;
    // Only this measurement has failed; its end was told to the peer.
    if (!status.ok()) std::fprintf(stderr, "bench: %s\n", std::string(status.message()).c_str());
  }
}

}  // namespace rdmad::rdmactl
