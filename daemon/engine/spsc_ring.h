// A bounded queue between two threads: one produces, one consumes, neither ever waits.
//
// Control sends commands to an engine through one, and the engine sends answers and events back
// through another. Indices run free and wrap modulo 2^32. Publication and the check for emptiness
// are sequentially consistent, so that "I go to sleep" and "I have put something in" cannot miss
// each other:
//   producer: Push(), then looks whether the other sleeps;
//   consumer: says that it sleeps, then looks at Empty().
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "daemon/base/check.h"

namespace rdmad::engine {

template <typename T>
class SpscRing {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // `capacity` is a power of two.
  explicit SpscRing(uint32_t capacity)
      : mask_(capacity - 1), slots_(std::make_unique<T[]>(capacity)) {
    RD_CHECK(std::has_single_bit(capacity));
  }
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // Producer. False: full, nothing was done.
  [[nodiscard]] bool Push(const T& value) noexcept {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) > mask_) return false;  // pairs with Pop()
    slots_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_seq_cst);  // pairs with Pop() and Empty()
    return true;
  }

  // Producer: how many Push() would succeed now, at least.
  uint32_t FreeSlots() const noexcept {
    return capacity() - (tail_.load(std::memory_order_relaxed) -
                         head_.load(std::memory_order_seq_cst));  // pairs with Pop()
  }

  // Consumer. False: empty.
  [[nodiscard]] bool Pop(T& value) noexcept {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    if (tail_.load(std::memory_order_acquire) == head) return false;  // pairs with Push()
    value = slots_[head & mask_];
    head_.store(head + 1, std::memory_order_seq_cst);  // pairs with Push() and FreeSlots()
    return true;
  }

  // Consumer.
  bool Empty() const noexcept {
    return tail_.load(std::memory_order_seq_cst) == head_.load(std::memory_order_relaxed);
  }

  uint32_t capacity() const noexcept { return mask_ + 1; }

 private:
  static constexpr size_t kLine = 64;
  const uint32_t mask_;
  const std::unique_ptr<T[]> slots_;
  alignas(kLine) std::atomic<uint32_t> tail_{0};  // written by the producer only
  alignas(kLine) std::atomic<uint32_t> head_{0};  // written by the consumer only
};

}  // namespace rdmad::engine
