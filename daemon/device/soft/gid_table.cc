#include "daemon/device/soft/gid_table.h"

namespace rdmad::soft {

std::optional<uint32_t> GidTable::Add(const SourceAddress& source) {
  for (uint32_t index = 0; index < kCapacity; ++index) {
    if (slots_[index].load(std::memory_order_relaxed) != nullptr)
      continue;  // only this thread writes
    Update(index, source);
    return index;
  }
  return std::nullopt;
}

void GidTable::Update(uint32_t index, const SourceAddress& source) {
  slots_[index].store(Intern(source), std::memory_order_release);  // pairs with Lookup()
}

void GidTable::Remove(uint32_t index) noexcept {
  slots_[index].store(nullptr, std::memory_order_release);
}

std::vector<device::GidEntry> GidTable::List() const {
  std::vector<device::GidEntry> list;
  SourceAddress entry;
  for (uint32_t index = 0; index < kCapacity; ++index) {
    if (Lookup(index, &entry)) list.push_back({index, entry.address});
  }
  return list;
}

std::optional<uint32_t> GidTable::Find(const IpAddress& address) const noexcept {
  SourceAddress entry;
  for (uint32_t index = 0; index < kCapacity; ++index) {
    if (Lookup(index, &entry) && entry.address == address) return index;
  }
  return std::nullopt;
}

const SourceAddress* GidTable::Intern(const SourceAddress& source) {
  for (const auto& entry : entries_) {
    if (entry->address == source.address && entry->max_mtu == source.max_mtu) return entry.get();
  }
  entries_.push_back(std::make_unique<const SourceAddress>(source));
  return entries_.back().get();
}

}  // namespace rdmad::soft
