// The memory regions of one engine: from a key to bytes, with every check that verbs asks for.
//
// A key is index << 8 | generation. The index finds the entry, the generation must be the entry's:
// an index that is used again gets the next generation, so a key from before fails. lkey and rkey
// of a region are the same number; which rights a use needs is an argument. Nobody keeps what
// Translate() returns beyond the call he makes it for: between two engine turns a region may be
// gone.
//
// Two sides: the control side hands out keys (ReserveKey, ReleaseKey); the engine side fills and
// clears the entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>

#include "absl/status/statusor.h"

namespace rdmad::soft {

// What a key stands for. All zero: nothing.
struct MrEntry {
  std::byte* host_addr;
  uint64_t length_bytes;
  uint64_t iova;
  uint64_t pd_id;
  uint32_t access;  // device::Access bits
  uint32_t key;     // 0: no region
};

class MrTable {
 public:
  static constexpr int kGenerationBits = 8;

  explicit MrTable(uint32_t max_regions = 65536);

  // Control thread. A key that is not valid for anything until Insert().
  // Errors: ResourceExhausted (table full; says the limit).
  absl::StatusOr<uint32_t> ReserveKey();
  // Control thread, after the engine has removed the region. The index goes to the end of the free
  // list.
  void ReleaseKey(uint32_t key);
  uint32_t capacity() const noexcept { return capacity_; }

  // Engine thread from here on.
  void Insert(const MrEntry& entry) noexcept;
  void Remove(uint32_t key) noexcept;

  // Where [iova, iova + length_bytes) lies, if `key` is a region of `pd_id` that covers it and has
  // all bits of `access`; else null. A length of 0 is checked like any other; callers for whom
  // zero-length needs no key must not ask.
  [[nodiscard]] std::byte* Translate(uint32_t key, uint64_t pd_id, uint64_t iova,
                                     uint64_t length_bytes, uint32_t access) const noexcept {
    const uint32_t index = key >> kGenerationBits;
    if (index >= capacity_) return nullptr;
    const MrEntry& entry = entries_[index];
    if (entry.key != key || key == 0 || entry.pd_id != pd_id) return nullptr;
    if ((entry.access & access) != access) return nullptr;
    // No sum that could wrap: the offset first, then what is left behind it.
    const uint64_t offset = iova - entry.iova;
    if (iova < entry.iova || offset > entry.length_bytes ||
        length_bytes > entry.length_bytes - offset) {
      return nullptr;
    }
    return entry.host_addr + offset;
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };

  const uint32_t capacity_;                   // indices, 0 included, which is never handed out
  std::unique_ptr<MrEntry[], Free> entries_;  // zero pages until used

  // Control side. A released index rests until so many others are released, so that its 256 keys
  // last long.
  static constexpr size_t kRestingKeys = 1024;
  std::deque<uint32_t> released_;  // in the order of their release
  uint32_t next_index_ = 1;
};

}  // namespace rdmad::soft
