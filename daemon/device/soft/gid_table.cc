#include "daemon/device/soft/gid_table.h"

namespace rdmad::soft {

std::optional<uint32_t> GidTable::Add(const SourceAddress& source) {
  std::optional<uint32_t> best;
  for (uint32_t index = 0; index < kCapacity; ++index) {
    if (slots_[index].load(std::memory_order_relaxed) != nullptr)
      continue;  // only this thread writes
    if (last_[index] != nullptr && last_[index]->address == source.address) {
      best = index;  // whoever uses it means this address
      break;
    }
    if (!best.has_value() && IsFree(index)) best = index;
  }
  if (best.has_value()) Update(*best, source);
  return best;
}

bool GidTable::IsFree(uint32_t index) const noexcept {
  return users_[index].load(std::memory_order_seq_cst) == 0;  // see GidUse::Take()
}

void GidTable::Update(uint32_t index, const SourceAddress& source) {
  last_[index] = Intern(source);
  slots_[index].store(last_[index], std::memory_order_seq_cst);  // pairs with Lookup()
}

void GidTable::Remove(uint32_t index) noexcept {
  slots_[index].store(nullptr, std::memory_order_seq_cst);
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
