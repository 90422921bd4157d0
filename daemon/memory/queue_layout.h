// How large the rings of a queue must be for what a client asked.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "proto/shm/completion_queue.h"
#include "proto/shm/work_queue.h"

namespace rdmad::memory {

// Slots so that `depth` WRs of the largest kind always fit: a power of two. Arguments within
// kMaxQueueDepth, kMaxSge and kMaxInlineBytes; for receive queues max_inline_bytes is 0.
constexpr uint32_t WorkQueueSlots(uint32_t depth, uint32_t max_sge,
                                  uint32_t max_inline_bytes) noexcept {
  const uint32_t slots_per_wr =
      1 + std::max(shm::ExtraSlotsForSges(max_sge), shm::ExtraSlotsForInline(max_inline_bytes));
  return std::bit_ceil(std::max(depth, 1u) * slots_per_wr);
}
static_assert(WorkQueueSlots(shm::kMaxQueueDepth, shm::kMaxSge, shm::kMaxInlineBytes) == 1u << 18);
static_assert(WorkQueueSlots(100, 4, 64) == 128 && WorkQueueSlots(0, 0, 0) == 1);

// Entries of a CQ for `depth` (within kMaxCqDepth): a power of two.
constexpr uint32_t CqEntries(uint32_t depth) noexcept {
  return std::bit_ceil(std::max(depth, 1u));
}

}  // namespace rdmad::memory
