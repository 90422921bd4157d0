// Divides a range of bytes into slices: what a Pool's Allocate does.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace rdmad::sdk {

// Best fit over free ranges that merge with their neighbours, behind a cache of recently freed slices by exact size
// (messages come in few sizes). Knows offsets only and touches no memory. Thread: one at a time.
class SliceAllocator {
 public:
  static constexpr size_t kAlignBytes = 64;  // a cache line; no two slices share one

  explicit SliceAllocator(size_t size_bytes);

  // Bytes that a slice of `size_bytes` takes; 0 if that overflows.
  static constexpr size_t Rounded(size_t size_bytes) noexcept {
    return (size_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  }

  // The offset of a slice of Rounded(size_bytes) bytes; nullopt: no range is long enough. `size_bytes` is not 0.
  std::optional<size_t> Allocate(size_t size_bytes);
  // `size_bytes` as given to Allocate.
  void Free(size_t offset, size_t size_bytes);

  size_t free_bytes() const noexcept { return free_bytes_; }
  // The longest slice that could be had now.
  size_t LargestFree();

 private:
  static constexpr size_t kMaxCachedSizes = 8;
  static constexpr size_t kMaxCachedSlices = 128;
  struct Bin {
    size_t bytes = 0;
    std::vector<size_t> offsets;
  };

  Bin* FindBin(size_t bytes) noexcept;
  void Insert(size_t offset, size_t bytes);  // merges
  void Erase(std::map<size_t, size_t>::iterator range);
  void EmptyBins();
  std::optional<size_t> TakeBestFit(size_t bytes);

  size_t free_bytes_;
  std::map<size_t, size_t> ranges_;                // offset -> bytes
  std::set<std::pair<size_t, size_t>> by_bytes_;   // the same, as (bytes, offset)
  std::vector<Bin> bins_;
};

}  // namespace rdmad::sdk
