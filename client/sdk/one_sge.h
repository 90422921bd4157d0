// What callers with one piece of memory post.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/shm/work_queue.h"
#include "rdmad/verbs.h"

namespace rdmad::sdk {

// One SGE, or none for an empty message. `fits` is false for what is longer than any message may be.
struct OneSge {
  OneSge(const void* addr, size_t length_bytes, const MemoryRegion* mr) noexcept
      : sge{reinterpret_cast<uintptr_t>(addr), static_cast<uint32_t>(length_bytes), mr == nullptr ? 0 : mr->lkey()},
        count(length_bytes == 0 ? 0 : 1),
        fits(length_bytes <= UINT32_MAX) {}
  std::span<const Sge> span() const noexcept { return {&sge, count}; }
  Sge sge;
  size_t count;
  bool fits;
};

inline absl::Status TooLong(const char* operation, size_t length_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(operation, ": length_bytes=", length_bytes, " limit=", UINT32_MAX));
}

using SgeArray = std::array<shm::WorkSge, shm::kMaxSge>;

// The same fields in the layout of the ring; false if there are more than any queue takes.
inline bool ConvertSges(std::span<const Sge> sges, SgeArray* out) noexcept {
  if (sges.size() > out->size()) return false;
  for (size_t i = 0; i < sges.size(); ++i) {
    (*out)[i] = {.addr = sges[i].addr, .length_bytes = sges[i].length_bytes, .lkey = sges[i].lkey};
  }
  return true;
}

}  // namespace rdmad::sdk
