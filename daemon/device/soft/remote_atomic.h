// The two atomic operations on a peer's behalf. They are atomic to everything else on this host, as
// with an HCA that reports IBV_ATOMIC_GLOB: applications may use the CPU's own atomics on the same
// word.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmad::soft {

// `target` is aligned to 8 bytes, and so is its address in the region's terms. The value is in host
// order. Both return what was there before.
inline uint64_t CompareSwap(std::byte* target, uint64_t compare, uint64_t swap) noexcept {
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(target));
  word.compare_exchange_strong(compare, swap, std::memory_order_seq_cst);
  return compare;
}

inline uint64_t FetchAdd(std::byte* target, uint64_t add) noexcept {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(target))
      .fetch_add(add, std::memory_order_seq_cst);
}

inline bool IsAtomicTarget(const std::byte* host) noexcept {
  return reinterpret_cast<uintptr_t>(host) % alignof(uint64_t) == 0;
}

}  // namespace rdmad::soft
