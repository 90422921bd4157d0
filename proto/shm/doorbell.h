// The control segment of one session at one engine: a two-level bitmap that tells the engine which queues have new work.
//
// A QP or SRQ has one doorbell index. After it has published a work queue's tail, the client sets the bit in `words`,
// then the word's bit in `summary`, then looks at the engine page and writes the wake pipe if the engine sleeps
// (doorbell order: bits first, then the look; the engine announces its sleep first, then looks at the bits; both with
// sequential consistency, so one of them always sees the other). The engine takes summary bits, then the words' bits,
// then drains those queues. A spurious bit is harmless; a bit for a queue that does not exist is ignored.
#pragma once

#include "proto/shm/segment.h"

namespace rdmad::shm {

inline constexpr uint32_t kMaxDoorbells = 65536;
inline constexpr uint32_t kDoorbellWords = kMaxDoorbells / 64;
inline constexpr uint32_t kDoorbellSummaryWords = kDoorbellWords / 64;

struct ControlSegment {
  SegmentHeader header;
  alignas(kCacheLine) std::atomic<uint64_t> summary[kDoorbellSummaryWords];
  alignas(kCacheLine) std::atomic<uint64_t> words[kDoorbellWords];
};
static_assert(offsetof(ControlSegment, summary) == 64 && offsetof(ControlSegment, words) == 192);
static_assert(sizeof(ControlSegment) == 192 + 8192);

// Marks queue `index` (below kMaxDoorbells) as having work. Returns false if its bit was already set: the engine has
// been told and has not looked yet. Called by the client.
inline bool RingDoorbell(ControlSegment& control, uint32_t index) noexcept {
  const uint32_t word = index / 64;
  const uint64_t bit = uint64_t{1} << (index % 64);
  const uint64_t before = control.words[word].fetch_or(bit, std::memory_order_seq_cst);
  // Always set the summary too: the engine clears it before the word, so a set word bit alone proves nothing.
  const uint64_t summary_bit = uint64_t{1} << (word % 64);
  if ((control.summary[word / 64].load(std::memory_order_seq_cst) & summary_bit) == 0) {
    control.summary[word / 64].fetch_or(summary_bit, std::memory_order_seq_cst);
  }
  return (before & bit) == 0;
}

}  // namespace rdmad::shm
