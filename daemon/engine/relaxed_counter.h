// A counter that one thread writes and any thread may read.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmad::engine {

class RelaxedCounter {
 public:
  // The writer only: a plain load and store, no locked instruction.
  void Add(uint64_t count) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  // Relaxed: a reader wants the number, nothing is published through it.
  uint64_t Get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace rdmad::engine
