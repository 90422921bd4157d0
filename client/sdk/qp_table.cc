#include "client/sdk/qp_table.h"

namespace rdmad::sdk {

QpTable::~QpTable() {
  for (std::atomic<Chunk*>& chunk : chunks_) delete chunk.load(std::memory_order_relaxed);
}

uint32_t QpTable::Reserve() {
  const std::lock_guard lock(mutex_);
  uint32_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (used_ <= kIndexMask) {
    index = used_++;
    std::atomic<Chunk*>& chunk = chunks_[index / kChunkSlots];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(std::make_unique<Chunk>().release(), std::memory_order_release);
    }
  } else {
    return 0;
  }
  Slot* slot = SlotAt(index);
  return ((++slot->generation) << kIndexBits) | index;
}

void QpTable::Set(uint32_t cookie, QueuePairState* qp) noexcept {
  const std::lock_guard lock(mutex_);
  Slot* slot = SlotAt(cookie & kIndexMask);
  slot->qp.store(qp, std::memory_order_release);
  slot->cookie.store(cookie, std::memory_order_release);
}

void QpTable::Remove(uint32_t cookie) noexcept {
  const std::lock_guard lock(mutex_);
  Slot* slot = SlotAt(cookie & kIndexMask);
  slot->cookie.store(0, std::memory_order_release);
  slot->qp.store(nullptr, std::memory_order_release);
  free_.push_back(cookie & kIndexMask);
}

}  // namespace rdmad::sdk
