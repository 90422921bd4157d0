#include "daemon/device/soft/mr_table.h"

#include "daemon/base/check.h"

namespace rdmad::soft {

MrTable::MrTable(uint32_t max_regions)
    : keys_(std::make_shared<MrKeys>(max_regions)),
      capacity_(keys_->capacity()),
      entries_(static_cast<MrEntry*>(std::calloc(capacity_, sizeof(MrEntry)))) {
  RD_CHECK(entries_ != nullptr);
}

void MrTable::ShareKeys(std::shared_ptr<MrKeys> keys, uint32_t engine) {
  RD_CHECK(keys->capacity() == capacity_);
  keys_ = std::move(keys);
  engine_ = engine;
}

void MrTable::Insert(const MrEntry& entry) noexcept {
  MrEntry& slot = entries_[MrKeys::IndexOf(entry.key)];
  RD_CHECK(slot.key == 0, "one region per key");
  slot = entry;
  slot.scope = entry.pd_id;
  slot.serial = ++last_serial_;
}

void MrTable::Remove(uint32_t key) noexcept {
  MrEntry& slot = entries_[MrKeys::IndexOf(key)];
  RD_CHECK(slot.key == key && !slot.is_window, "only who inserted a region removes it");
  slot = MrEntry{};
}

}  // namespace rdmad::soft
