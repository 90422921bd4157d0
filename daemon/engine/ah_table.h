// The address handles of one session, by the numbers that its work requests name them by.
//
// Numbers are dense, so a post finds its handle by one look into an array, however many there are
// and whoever else has many. Entries stand in blocks that are made when a port of that block is
// first constructed: on the control thread, while the engine reads the table, so block pointers are
// atomic and only ever change from null to a block (as in DoorbellTable).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "daemon/base/check.h"
#include "daemon/device/device.h"
#include "daemon/engine/port.h"

namespace rdmad::engine {

class AhTable {
 public:
  struct Entry {
    const device::Ah* ah = nullptr;
    const device::Pd* pd = nullptr;
  };

  AhTable() = default;
  AhTable(const AhTable&) = delete;
  AhTable& operator=(const AhTable&) = delete;
  ~AhTable() {
    for (std::atomic<Block*>& block : blocks_) delete block.load(std::memory_order_relaxed);
  }

  // Control thread: makes room for `slot_handle` before the engine hears of it.
  void Reserve(uint32_t slot_handle) {
    RD_CHECK(slot_handle >= 1 && slot_handle <= kMaxAhs);
    std::atomic<Block*>& block = blocks_[(slot_handle - 1) / kBlockEntries];
    if (block.load(std::memory_order_relaxed) != nullptr) return;
    block.store(std::make_unique<Block>().release(),
                std::memory_order_release);  // pairs with PlaceOf()
  }

  // Engine thread, from here on. `slot_handle` was reserved and is free.
  void Insert(uint32_t slot_handle, const Entry& entry) noexcept {
    Entry* const place = PlaceOf(slot_handle);
    RD_CHECK(place != nullptr && place->ah == nullptr, "one address handle per number");
    *place = entry;
  }
  void Remove(uint32_t slot_handle) noexcept { *PlaceOf(slot_handle) = Entry(); }

  // What a client named, which may be any number. Null unless it is an address handle in `pd`: a
  // device must not be shown one of another device.
  const device::Ah* Find(uint32_t slot_handle, const device::Pd* pd) const noexcept {
    const Entry* const entry = PlaceOf(slot_handle);
    return entry == nullptr || entry->pd != pd ? nullptr : entry->ah;
  }

 private:
  static constexpr uint32_t kBlockEntries = 512;
  using Block = std::array<Entry, kBlockEntries>;

  Entry* PlaceOf(uint32_t slot_handle) const noexcept {
    const uint32_t index = slot_handle - 1;  // 0 wraps to what is far beyond the end
    if (index >= kMaxAhs) return nullptr;
    Block* const block = blocks_[index / kBlockEntries].load(std::memory_order_acquire);
    return block == nullptr ? nullptr : &(*block)[index % kBlockEntries];
  }

  std::array<std::atomic<Block*>, kMaxAhs / kBlockEntries> blocks_{};
};

}  // namespace rdmad::engine
