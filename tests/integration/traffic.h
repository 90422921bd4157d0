// Mixed traffic over one connection, as an application under load makes it: messages of random
// sizes, writes into the peer's memory, and reads of what was written. Both ends run it at the same
// time; each checks every byte that it gets.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rdmad/rdmad.h"

namespace rdmad::testing {

struct TrafficOptions {
  uint64_t seed = 1;
  uint32_t max_message_bytes = 8192;   // at most the peer's EndpointOptions::max_recv_bytes
  uint32_t shared_bytes = 256 * 1024;  // of the memory into which the peer writes
};

// How much has gone through, for who watches. Thread: any.
struct TrafficCounts {
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> received{0};
  std::atomic<uint64_t> written{0};  // and read back
};

// Runs until `stop` or until something fails. OK: stopped. DataLoss: bytes were not those of the
// peer. Any other error is that of the connection. Uses one more thread. The peer may write into
// our memory, and its messages are received, for as long as `keep` lives; without it, until this
// returns. `keep` needs `counts`, which must outlive it.
absl::Status RunTraffic(const Client& client, Endpoint& endpoint, const TrafficOptions& options,
                        const std::atomic<bool>& stop, TrafficCounts* counts = nullptr,
                        std::shared_ptr<void>* keep = nullptr);

// RunTraffic on a thread of its own, which is stopped and joined by the destructor. Until then the
// peer's messages are received and its writes and reads find their memory, so the two ends may be
// stopped one after the other.
class TrafficThread {
 public:
  // `endpoint` must outlive it.
  TrafficThread(const Client& client, Endpoint& endpoint, const TrafficOptions& options = {});
  ~TrafficThread() { (void)Stop(); }
  TrafficThread(const TrafficThread&) = delete;
  TrafficThread& operator=(const TrafficThread&) = delete;

  // Ends it, if it has not ended by itself.
  absl::Status Stop();
  // Waits until it ends by itself.
  absl::Status Join();
  // When it did; after Join().
  [[nodiscard]] absl::Time ended_at() const { return ended_at_; }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const TrafficCounts& counts() const { return counts_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> ended_{false};
  TrafficCounts counts_;
  std::shared_ptr<void> keep_;
  absl::Status status_;
  absl::Time ended_at_;
  std::thread thread_;
};

}  // namespace rdmad::testing
