// The number by which the hardware knows a WR of ours (its wr_id), and the table behind it.
//
//   63                32 31  30 29                       0
//   | slot              | kind | place in the queue       |
//
// The slot names the QP, or the SRQ of a receive: an index below, a generation above. A slot is
// reused, its generation is not soon, so that a completion that the hardware still had of a QP that
// is gone finds nobody.
//
// Thread: engine.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/base/check.h"

namespace rdmad::verbs {

enum class WrKind : uint32_t {
  kSend,
  kRecv,
  kDrained,  // posted by us behind all other sends
  kSrqRecv,
};

inline constexpr uint32_t kPositionBits = 30;
inline constexpr uint32_t kPositionMask = (1u << kPositionBits) - 1;

constexpr uint64_t MakeWrNumber(uint32_t slot, WrKind kind, uint32_t position) noexcept {
  return uint64_t{slot} << 32 | static_cast<uint32_t>(kind) << kPositionBits |
         (position & kPositionMask);
}
constexpr uint32_t SlotOf(uint64_t number) noexcept {
  return static_cast<uint32_t>(number >> 32);
}
constexpr WrKind KindOf(uint64_t number) noexcept {
  return static_cast<WrKind>(static_cast<uint32_t>(number) >> kPositionBits);
}
constexpr uint32_t PositionOf(uint64_t number) noexcept {
  return static_cast<uint32_t>(number) & kPositionMask;
}

template <typename T>
class SlotTable {
 public:
  uint32_t Add(T& object) noexcept {
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(entries_.size());
      RD_CHECK(index <= kIndexMask, "no device has as many");
      entries_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    entries_[index].object = &object;
    return entries_[index].generation << kIndexBits | index;
  }

  void Remove(uint32_t slot) noexcept {
    Entry& entry = entries_[slot & kIndexMask];
    entry.object = nullptr;
    entry.generation = (entry.generation + 1) & (UINT32_MAX >> kIndexBits);
    free_.push_back(slot & kIndexMask);
  }

  // Null: gone, or never there.
  [[nodiscard]] T* Find(uint32_t slot) const noexcept {
    const uint32_t index = slot & kIndexMask;
    if (index >= entries_.size() || entries_[index].generation != slot >> kIndexBits)
      return nullptr;
    return entries_[index].object;
  }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Entry& entry : entries_) {
      if (entry.object != nullptr) visit(*entry.object);
    }
  }

 private:
  static constexpr uint32_t kIndexBits = 20;
  static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;

  struct Entry {
    T* object = nullptr;
    uint32_t generation = 0;
  };
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace rdmad::verbs
