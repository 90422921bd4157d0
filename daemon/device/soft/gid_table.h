// The addresses of one soft device by index: control changes them, engines look them up.
//
// An index keeps its address as long as the address exists. Entries are made once and not changed
// or freed before the table, so that an engine may hold on to one without a lock; a slot is one
// atomic pointer. An address that comes back finds its old entry, hence the memory is bounded by
// what addresses and MTUs an interface ever had.
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

  // Thread: control. The lowest free index, or nothing if all are taken.
  std::optional<uint32_t> Add(const SourceAddress& source);
  // Thread: control. A new MTU for an index in use.
  void Update(uint32_t index, const SourceAddress& source);
  void Remove(uint32_t index) noexcept;
  std::vector<device::GidEntry> List() const;
  // Nothing if no index has it.
  std::optional<uint32_t> Find(const IpAddress& address) const noexcept;

  // Any thread. False: the index is not in use.
  bool Lookup(uint32_t index, SourceAddress* out) const noexcept {
    if (index >= kCapacity) return false;
    const SourceAddress* entry = slots_[index].load(std::memory_order_acquire);  // pairs with Add()
    if (entry == nullptr) return false;
    *out = *entry;
    return true;
  }

 private:
  const SourceAddress* Intern(const SourceAddress& source);

  std::array<std::atomic<const SourceAddress*>, kCapacity> slots_{};
  std::vector<std::unique_ptr<const SourceAddress>> entries_;
};

}  // namespace rdmad::soft
