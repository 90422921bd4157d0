#include "daemon/device/soft/mr_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace rdmad::soft {

MrTable::MrTable(uint32_t max_regions)
    : capacity_(max_regions + 1),
      entries_(static_cast<MrEntry*>(std::calloc(capacity_, sizeof(MrEntry)))) {
  RD_CHECK(max_regions < 1u << (32 - kGenerationBits), "an index must fit a key");
  RD_CHECK(entries_ != nullptr);
}

absl::StatusOr<uint32_t> MrTable::ReserveKey() {
  if (released_.size() <= kRestingKeys && next_index_ < capacity_) {
    return next_index_++ << kGenerationBits;
  }
  if (released_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no key left for a region or window, device_max=", capacity_ - 1));
  }
  const uint32_t old_key = released_.front();
  released_.pop_front();
  const uint32_t generation = (old_key + 1) & ((1u << kGenerationBits) - 1);
  return (old_key >> kGenerationBits << kGenerationBits) | generation;
}

void MrTable::ReleaseKey(uint32_t key) {
  RD_CHECK(released_.size() < next_index_, "more keys released than reserved");
  released_.push_back(key);
}

void MrTable::Insert(const MrEntry& entry) noexcept {
  MrEntry& slot = entries_[entry.key >> kGenerationBits];
  RD_CHECK(slot.key == 0, "one region per key");
  slot = entry;
  slot.scope = entry.pd_id;
  slot.serial = ++last_serial_;
}

void MrTable::Remove(uint32_t key) noexcept {
  MrEntry& slot = entries_[key >> kGenerationBits];
  RD_CHECK(slot.key == key && !slot.is_window, "only who inserted a region removes it");
  slot = MrEntry{};
}

}  // namespace rdmad::soft
