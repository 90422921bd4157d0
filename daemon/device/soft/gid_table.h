// The addresses of one soft device by index: control changes them, engines look them up.
//
// An index keeps its address as long as the address exists, and is not given to another one while
// somebody uses it (GidUse): a QP that names the index of an address that has gone would otherwise
// seem to have moved. An address that comes back gets its old index if that is still free.
//
// Entries are made once and not changed or freed before the table, so that an engine may hold on to
// one without a lock; a slot is one atomic pointer. An address that comes back finds its old entry,
// hence the memory is bounded by what addresses and MTUs an interface ever had.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/source_address.h"

namespace rdmad::soft {

class GidTable {
 public:
  static constexpr uint32_t kCapacity = 256;

  // Thread: control. The index that the address had last, else the lowest that nobody has or uses;
  // nothing if there is none.
  std::optional<uint32_t> Add(const SourceAddress& source);
  // Thread: control. A new MTU for an index in use.
  void Update(uint32_t index, const SourceAddress& source);
  void Remove(uint32_t index) noexcept;
  std::vector<device::GidEntry> List() const;
  // Nothing if no index has it.
  std::optional<uint32_t> Find(const IpAddress& address) const noexcept;

  // Any thread. False: no address has the index.
  bool Lookup(uint32_t index, SourceAddress* out) const noexcept {
    if (index >= kCapacity) return false;
    // Pairs with Update(); sequentially consistent for GidUse::Take().
    const SourceAddress* entry = slots_[index].load(std::memory_order_seq_cst);
    if (entry == nullptr) return false;
    *out = *entry;
    return true;
  }

 private:
  friend class GidUse;

  const SourceAddress* Intern(const SourceAddress& source);
  [[nodiscard]] bool IsFree(uint32_t index) const noexcept;

  std::array<std::atomic<const SourceAddress*>, kCapacity> slots_{};
  std::array<std::atomic<uint32_t>, kCapacity> users_{};
  // Thread: control.
  std::array<const SourceAddress*, kCapacity> last_{};  // that an index had or has
  std::vector<std::unique_ptr<const SourceAddress>> entries_;
};

// One user of an index: a QP that names it, for example.
//
// Thread: one at a time. The table outlives it.
class GidUse {
 public:
  explicit GidUse(GidTable& table) noexcept : table_(table) {}
  ~GidUse() { Drop(); }
  GidUse(const GidUse&) = delete;
  GidUse& operator=(const GidUse&) = delete;

  // As GidTable::Lookup(); if there is an address, this uses `index` from now on, and no other.
  bool Take(uint32_t index, SourceAddress* out) noexcept {
    if (index >= GidTable::kCapacity) return false;
    // Counted first, then looked up: Add() empties first, then looks at the count. So one of the
    // two sees the other.
    table_.users_[index].fetch_add(1, std::memory_order_seq_cst);
    if (!table_.Lookup(index, out)) {
      table_.users_[index].fetch_sub(1, std::memory_order_release);
      return false;
    }
    Drop();
    index_ = index;
    return true;
  }

 private:
  void Drop() noexcept {
    if (index_ == GidTable::kCapacity) return;
    table_.users_[index_].fetch_sub(1, std::memory_order_release);
    index_ = GidTable::kCapacity;
  }

  GidTable& table_;
  uint32_t index_ = GidTable::kCapacity;  // none
};

}  // namespace rdmad::soft
