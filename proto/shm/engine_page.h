// One page per engine, mapped read-only by every client: says whether the engine sleeps.
//
// The daemon seals it with F_SEAL_FUTURE_WRITE, so no client can map it writable.
#pragma once

#include "proto/shm/segment.h"

namespace rdmad::shm {

struct EnginePage {
  SegmentHeader header;
  // 1: the engine is in (or entering) its wait; whoever rang a doorbell must write one byte to its wake pipe.
  alignas(kCacheLine) std::atomic<uint32_t> sleeping;
};
static_assert(sizeof(EnginePage) == 128);

// To be asked after RingDoorbell(). Pairs with the engine's seq_cst store of `sleeping` before its last look.
inline bool EngineNeedsWake(const EnginePage& page) noexcept {
  return page.sleeping.load(std::memory_order_seq_cst) != 0;
}

}  // namespace rdmad::shm
