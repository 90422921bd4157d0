#include "tests/integration/traffic.h"

#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/status_macros.h"
#include "tests/integration/pattern.h"

namespace rdmad::testing {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr absl::Duration kLook = absl::Milliseconds(50);  // how often `stop` is looked at
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(30);

// One end. Two threads: Send() and Receive().
class Traffic {
 public:
  Traffic(Endpoint& endpoint, Pool pool, const TrafficOptions& options,
          const std::atomic<bool>& stop, TrafficCounts& counts)
      : endpoint_(endpoint),
        pool_(std::move(pool)),
        options_(options),
        stop_(stop),
        counts_(counts),
        random_(options.seed) {}

  // Tells each other where to write.
  absl::Status ExchangeBuffers() {
    RD_ASSIGN_OR_RETURN(shared_, pool_.Allocate(options_.shared_bytes));
    RD_ASSIGN_OR_RETURN(region_, endpoint_.Share(shared_, kAccessRemoteRead | kAccessRemoteWrite));
    const auto encoded = Endpoint::Describe(region_).Encode();
    RD_RETURN_IF_ERROR(endpoint_.SendCopy(encoded));
    RD_ASSIGN_OR_RETURN(Buffer answer, endpoint_.Receive(kHandshakeTimeout));
    RD_ASSIGN_OR_RETURN(remote_, RemoteBuffer::Decode(answer.bytes()));
    return absl::OkStatus();
  }

  ~Traffic() { EndReceiving(); }

  // Goes on receiving after it, if `keep_receiving`, until EndReceiving() or destruction: what the
  // peer has queued behind its messages would wait for ever.
  absl::Status Run(bool keep_receiving) {
    receiver_ = std::thread([this] { Finish(Receive()); });
    Finish(Send());
    if (!keep_receiving) EndReceiving();
    const std::lock_guard lock(mutex_);
    returned_ = true;
    return result_;
  }

 private:
  void EndReceiving() {
    end_receiving_ = true;
    if (receiver_.joinable()) receiver_.join();
  }

  void Finish(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (status.ok() || !result_.ok() || returned_) return;
    result_ = status;
    failed_ = true;
  }

  absl::Status Send() {
    while (!stop_ && !failed_) {
      const absl::Status status = random_() % 4 == 0 ? WriteAndReadBack() : SendMessage();
      if (!status.ok() && status.code() != absl::StatusCode::kDeadlineExceeded) return status;
    }
    return absl::OkStatus();
  }

  // The first eight bytes of a message are the seed of the rest.
  absl::Status SendMessage() {
    const size_t size = kHeaderBytes + random_() % (options_.max_message_bytes - kHeaderBytes + 1);
    absl::StatusOr<Buffer> buffer = pool_.Allocate(size);
    if (absl::IsResourceExhausted(buffer.status())) return endpoint_.Flush(kLook);
    if (!buffer.ok()) return buffer.status();
    const uint64_t seed = random_();
    std::memcpy(buffer->data(), &seed, kHeaderBytes);
    FillPattern(buffer->bytes().subspan(kHeaderBytes), seed);
    RD_RETURN_IF_ERROR(endpoint_.Send(std::move(buffer).value(), std::nullopt, kLook));
    ++counts_.sent;
    return absl::OkStatus();
  }

  absl::Status WriteAndReadBack() {
    const uint64_t offset = random_() % remote_.length_bytes;
    const size_t size = 1 + random_() % std::min<uint64_t>(remote_.length_bytes - offset, 65536);
    absl::StatusOr<Buffer> buffer = pool_.Allocate(size);
    if (absl::IsResourceExhausted(buffer.status())) return endpoint_.Flush(kLook);
    if (!buffer.ok()) return buffer.status();
    const uint64_t seed = random_();
    FillPattern(buffer->bytes(), seed);
    RD_RETURN_IF_ERROR(endpoint_.Write(*buffer, remote_, offset));
    std::memset(buffer->data(), 0, size);
    RD_RETURN_IF_ERROR(endpoint_.Read(*buffer, remote_, offset));
    if (const auto at = PatternMismatch(buffer->bytes(), seed)) {
      return absl::DataLossError(absl::StrCat("read back ", size, " bytes, wrong at ", *at));
    }
    ++counts_.written;
    return absl::OkStatus();
  }

  absl::Status Receive() {
    while (!end_receiving_ && !failed_) {
      const absl::StatusOr<Buffer> buffer = endpoint_.Receive(kLook);
      if (absl::IsDeadlineExceeded(buffer.status())) continue;
      if (!buffer.ok()) return buffer.status();
      if (buffer->size() < kHeaderBytes) {
        return absl::DataLossError(absl::StrCat("a message of ", buffer->size(), " bytes"));
      }
      uint64_t seed = 0;
      std::memcpy(&seed, buffer->data(), kHeaderBytes);
      if (const auto at = PatternMismatch(buffer->bytes().subspan(kHeaderBytes), seed)) {
        return absl::DataLossError(
            absl::StrCat("a message of ", buffer->size(), " bytes, wrong at ", *at));
      }
      ++counts_.received;
    }
    return absl::OkStatus();
  }

  Endpoint& endpoint_;
  Pool pool_;
  const TrafficOptions options_;
  const std::atomic<bool>& stop_;
  TrafficCounts& counts_;
  std::mt19937_64 random_;
  Buffer shared_;
  MemoryRegion region_;
  RemoteBuffer remote_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> end_receiving_{false};
  std::mutex mutex_;  // of result_ and returned_
  absl::Status result_;
  bool returned_ = false;
  std::thread receiver_;
};

}  // namespace

absl::Status RunTraffic(const Client& client, Endpoint& endpoint, const TrafficOptions& options,
                        const std::atomic<bool>& stop, TrafficCounts* counts,
                        std::shared_ptr<void>* keep) {
  TrafficCounts own_counts;
  // Room for what is queued.
  RD_ASSIGN_OR_RETURN(Pool pool, Pool::Create(client, options.shared_bytes + (1 << 20) +
                                                          8 * options.max_message_bytes));
  const auto traffic = std::make_shared<Traffic>(endpoint, std::move(pool), options, stop,
                                                 counts != nullptr ? *counts : own_counts);
  if (keep != nullptr) *keep = traffic;
  RD_RETURN_IF_ERROR(traffic->ExchangeBuffers());
  return traffic->Run(keep != nullptr);
}

TrafficThread::TrafficThread(const Client& client, Endpoint& endpoint,
                             const TrafficOptions& options) {
  thread_ = std::thread([this, client, &endpoint, options] {
    status_ = RunTraffic(client, endpoint, options, stop_, &counts_, &keep_);
    ended_at_ = absl::Now();
    ended_ = true;
  });
}

absl::Status TrafficThread::Stop() {
  stop_ = true;
  return Join();
}

absl::Status TrafficThread::Join() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

}  // namespace rdmad::testing
