// From a Cqe's `qp_cookie` to its queue pair.
//
// Thread: Find from whoever polls, at any time and without a lock; Add and Remove under a lock of the table. A pointer
// that Find gave stays good as long as the caller holds the lock of a CQ that the QP uses: the QP's end takes it out of
// the table, then passes through these locks (QueuePairState).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace rdmad::sdk {

class QueuePairState;

class QpTable {
 public:
  QpTable() = default;
  ~QpTable();
  QpTable(const QpTable&) = delete;
  QpTable& operator=(const QpTable&) = delete;

  // A cookie that names nobody yet; Set gives it its QP. 0: the table is full.
  uint32_t Reserve();
  void Set(uint32_t cookie, QueuePairState* qp) noexcept;
  void Remove(uint32_t cookie) noexcept;

  // Null if the QP is gone, even if its place has a new owner: a cookie holds a generation.
  QueuePairState* Find(uint32_t cookie) const noexcept {
    const Slot* slot = SlotAt(cookie & kIndexMask);
    if (slot == nullptr || slot->cookie.load(std::memory_order_acquire) != cookie) return nullptr;
    return slot->qp.load(std::memory_order_acquire);
  }

 private:
  static constexpr uint32_t kIndexBits = 20;
  static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunks = (1u << kIndexBits) / kChunkSlots;

  struct Slot {
    std::atomic<QueuePairState*> qp{nullptr};
    std::atomic<uint32_t> cookie{0};
    uint32_t generation = 0;
  };
  using Chunk = std::array<Slot, kChunkSlots>;

  Slot* SlotAt(uint32_t index) const noexcept {
    Chunk* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &(*chunk)[index % kChunkSlots];
  }

  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
  std::mutex mutex_;
  std::vector<uint32_t> free_;
  uint32_t used_ = 1;  // index 0 is nobody's: cookie 0 is invalid
};

}  // namespace rdmad::sdk
