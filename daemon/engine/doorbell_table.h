// Which work source has which doorbell index, for one session.
//
// Indices go up to kMaxDoorbells, but a session seldom uses many: sources stand in blocks of 64
// that are made when a port of that block is first constructed. That happens on the control thread
// while the engine reads the table, so block pointers are atomic and only ever change from null to
// a block.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "daemon/base/check.h"
#include "daemon/engine/work_source.h"
#include "proto/shm/doorbell.h"

namespace rdmad::engine {

class DoorbellTable {
 public:
  DoorbellTable() = default;
  DoorbellTable(const DoorbellTable&) = delete;
  DoorbellTable& operator=(const DoorbellTable&) = delete;
  ~DoorbellTable() {
    for (std::atomic<Block*>& block : blocks_) delete block.load(std::memory_order_relaxed);
  }

  // Control thread: makes room for `index` before the engine hears of it.
  void Reserve(uint32_t index) {
    RD_CHECK(index < shm::kMaxDoorbells);
    std::atomic<Block*>& block = blocks_[index / 64];
    if (block.load(std::memory_order_relaxed) != nullptr) return;
    block.store(std::make_unique<Block>().release(),
                std::memory_order_release);  // pairs with Find()
  }

  // Engine thread, from here on. `index` was reserved and is free.
  void Insert(uint32_t index, WorkSource& source) noexcept {
    WorkSource*& place = PlaceOf(index);
    RD_CHECK(place == nullptr, "one source per doorbell");
    place = &source;
    const uint32_t words = index / 64 + 1;
    if (words > used_words_) used_words_ = words;
  }
  void Remove(uint32_t index) noexcept { PlaceOf(index) = nullptr; }

  // Null for an index that no source has.
  WorkSource* Find(uint32_t word, uint32_t bit) const noexcept {
    const Block* const block = blocks_[word].load(std::memory_order_acquire);
    return block == nullptr ? nullptr : (*block)[bit];
  }

  // Words of the bitmap that ever had a source: 0..used_words()-1.
  uint32_t used_words() const noexcept { return used_words_; }

 private:
  using Block = std::array<WorkSource*, 64>;

  WorkSource*& PlaceOf(uint32_t index) noexcept {
    RD_CHECK(index < shm::kMaxDoorbells);
    Block* const block = blocks_[index / 64].load(std::memory_order_acquire);
    RD_CHECK(block != nullptr, "reserved before");
    return (*block)[index % 64];
  }

  std::array<std::atomic<Block*>, shm::kDoorbellWords> blocks_{};
  uint32_t used_words_ = 0;  // the engine's own
};

}  // namespace rdmad::engine
