// A link slower than its senders, with the queue before it: frames leave at a rate, those that find
// the queue full are dropped, and those that find it long are marked "congestion experienced" if
// their sender allows it (RFC 3168), as a switch with ECN does. tc's own queues that mark need
// kernel modules that few kernels have.
//
// Thread: one at a time. Owner: the PacketWire.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace rdmad::testing {

struct BottleneckOptions {
  uint64_t bytes_per_s = 0;
  uint64_t limit_bytes = 0;
  uint64_t mark_bytes = UINT64_MAX;  // the queue that gets frames marked
};

struct BottleneckCounts {
  uint64_t passed = 0;
  uint64_t marked = 0;
  uint64_t dropped = 0;
  uint64_t longest_bytes = 0;  // of the queue
};

class Bottleneck {
 public:
  explicit Bottleneck(const BottleneckOptions& options) : options_(options) {}

  void Offer(std::span<const uint8_t> frame, int64_t now_ns);
  // The next frame if it has left by now; else empty.
  std::vector<uint8_t> Take(int64_t now_ns);
  // When that will be; INT64_MAX: the queue is empty.
  [[nodiscard]] int64_t NextNs() const { return queue_.empty() ? INT64_MAX : queue_[0].leaves_ns; }
  [[nodiscard]] const BottleneckCounts& counts() const { return counts_; }

 private:
  struct Queued {
    std::vector<uint8_t> frame;
    int64_t leaves_ns;
  };

  const BottleneckOptions options_;
  std::deque<Queued> queue_;
  uint64_t queued_bytes_ = 0;
  int64_t busy_until_ns_ = 0;
  BottleneckCounts counts_;
};

}  // namespace rdmad::testing
