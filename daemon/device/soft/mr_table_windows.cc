// The memory windows of an MrTable.
#include "daemon/base/check.h"
#include "daemon/device/soft/mr_table.h"
#include "daemon/device/types.h"

namespace rdmad::soft {

// A key says which window it means by its index; the low bits are what a bind changes.
MrEntry* MrTable::FindWindow(uint32_t any_key) noexcept {
  const uint32_t index = MrKeys::IndexOf(any_key);
  if (index >= capacity_) return nullptr;
  MrEntry& entry = entries_[index];
  return entry.key != 0 && entry.is_window ? &entry : nullptr;
}

void MrTable::MakeFree(MrEntry& window) noexcept {
  window.host_addr = nullptr;
  window.length_bytes = 0;
  window.iova = 0;
  window.access = 0;
  window.scope = kNoScope;
  window.serial = 0;
  window.region_index = 0;
}

void MrTable::InsertWindow(uint32_t key, uint64_t pd_id) noexcept {
  MrEntry& slot = entries_[MrKeys::IndexOf(key)];
  RD_CHECK(slot.key == 0, "one window per key");
  slot = MrEntry{};
  MakeFree(slot);
  slot.pd_id = pd_id;
  slot.key = key;
  slot.is_window = true;
}

void MrTable::RemoveWindow(uint32_t first_key) noexcept {
  MrEntry* const window = FindWindow(first_key);
  RD_CHECK(window != nullptr, "only who inserted a window removes it");
  *window = MrEntry{};
}

bool MrTable::BindWindow(const WindowBind& bind, uint64_t pd_id, uint64_t qp_scope) noexcept {
  MrEntry* const window = FindWindow(bind.key);
  if (window == nullptr || window->pd_id != pd_id) return false;
  if (bind.length_bytes == 0) {
    if (window->scope == kNoScope) return keys_->Rekey(bind.key);
    if (window->scope != qp_scope) return false;
    MakeFree(*window);
    keys_->Free(bind.key);
    return true;
  }
  if (window->scope != kNoScope) return false;
  constexpr uint32_t kWrites = device::kAccessRemoteWrite | device::kAccessRemoteAtomic;
  constexpr uint32_t kRights = kWrites | device::kAccessRemoteRead;
  if ((bind.access & ~uint64_t{kRights}) != 0) return false;
  const bool writes = (bind.access & kWrites) != 0;
  const uint32_t needed =
      device::kAccessMwBind | (writes ? uint32_t{device::kAccessLocalWrite} : 0);
  std::byte* const first = Translate(bind.lkey, pd_id, bind.iova, bind.length_bytes, needed);
  if (first == nullptr || !keys_->Bind(bind.key, engine_)) return false;
  window->host_addr = first;
  window->length_bytes = bind.length_bytes;
  window->iova = bind.iova;
  window->access = static_cast<uint32_t>(bind.access);
  window->key = bind.key;
  window->scope = qp_scope;
  window->region_index = MrKeys::IndexOf(bind.lkey);
  window->serial = entries_[window->region_index].serial;
  return true;
}

bool MrTable::MayInvalidate(uint32_t key, uint64_t qp_scope) const noexcept {
  const uint32_t index = MrKeys::IndexOf(key);
  if (index >= capacity_ || key == 0) return false;
  const MrEntry& entry = entries_[index];
  return entry.key == key && entry.is_window && entry.scope == qp_scope;
}

bool MrTable::InvalidateWindow(uint32_t key, uint64_t qp_scope) noexcept {
  if (!MayInvalidate(key, qp_scope)) return false;
  MakeFree(entries_[MrKeys::IndexOf(key)]);
  keys_->Free(key);
  return true;
}

}  // namespace rdmad::soft
