#include "daemon/device/soft/mr_keys.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"

namespace rdmad::soft {

MrKeys::MrKeys(uint32_t max_regions)
    : capacity_(max_regions + 1),
      windows_(static_cast<uint32_t*>(std::calloc(capacity_, sizeof(uint32_t)))) {
  RD_CHECK(max_regions < 1u << (32 - kGenerationBits), "an index must fit a key");
  RD_CHECK(windows_ != nullptr);
}

absl::StatusOr<uint32_t> MrKeys::Reserve() {
  if (released_.size() <= kRestingKeys && next_index_ < capacity_) {
    return next_index_++ << kGenerationBits;
  }
  if (released_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no key left for a region or window, device_max=", capacity_ - 1));
  }
  const uint32_t old_key = released_.front();
  released_.pop_front();
  return (old_key & ~kGenerationMask) | ((old_key + 1) & kGenerationMask);
}

void MrKeys::Release(uint32_t key) {
  RD_CHECK(released_.size() < next_index_, "more keys released than reserved");
  released_.push_back(key);
}

void MrKeys::MakeWindow(uint32_t key) noexcept {
  // Relaxed: engines hear of the window by a command.
  WordOf(key).store(key & kGenerationMask, std::memory_order_relaxed);
}

uint32_t MrKeys::LastKeyOf(uint32_t first_key) const noexcept {
  return (first_key & ~kGenerationMask) |
         (WordOf(first_key).load(std::memory_order_relaxed) & kGenerationMask);
}

// Relaxed, all three: the word says all there is to say; what it is bound to is in the table of the
// engine that bound it.
bool MrKeys::Bind(uint32_t key, uint32_t engine) noexcept {
  const uint32_t generation = key & kGenerationMask;
  const std::atomic_ref<uint32_t> word = WordOf(key);
  uint32_t now = word.load(std::memory_order_relaxed);
  // The same key again would revive what its last owner was told.
  if (now > kGenerationMask || now == generation) return false;
  return word.compare_exchange_strong(now, (engine + 1) << kGenerationBits | generation,
                                      std::memory_order_relaxed);
}

bool MrKeys::Rekey(uint32_t key) noexcept {
  const std::atomic_ref<uint32_t> word = WordOf(key);
  uint32_t now = word.load(std::memory_order_relaxed);
  return now <= kGenerationMask &&
         word.compare_exchange_strong(now, key & kGenerationMask, std::memory_order_relaxed);
}

void MrKeys::Free(uint32_t key) noexcept {
  WordOf(key).store(key & kGenerationMask, std::memory_order_relaxed);
}

}  // namespace rdmad::soft
