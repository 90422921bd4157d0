#include "client/sdk/slice_allocator.h"

#include <iterator>

namespace rdmad::sdk {

SliceAllocator::SliceAllocator(size_t size_bytes) : free_bytes_(size_bytes / kAlignBytes * kAlignBytes) {
  if (free_bytes_ != 0) Insert(0, free_bytes_);
}

SliceAllocator::Bin* SliceAllocator::FindBin(size_t bytes) noexcept {
  for (Bin& bin : bins_) {
    if (bin.bytes == bytes) return &bin;
  }
  return nullptr;
}

std::optional<size_t> SliceAllocator::Allocate(size_t size_bytes) {
  const size_t bytes = Rounded(size_bytes);
  if (bytes == 0 || bytes > free_bytes_) return std::nullopt;  // 0: rounding overflowed
  if (Bin* bin = FindBin(bytes); bin != nullptr && !bin->offsets.empty()) {
    const size_t offset = bin->offsets.back();
    bin->offsets.pop_back();
    free_bytes_ -= bytes;
    return offset;
  }
  std::optional<size_t> offset = TakeBestFit(bytes);
  if (!offset.has_value()) {
    EmptyBins();
    offset = TakeBestFit(bytes);
  }
  if (offset.has_value()) free_bytes_ -= bytes;
  return offset;
}

std::optional<size_t> SliceAllocator::TakeBestFit(size_t bytes) {
  const auto fit = by_bytes_.lower_bound({bytes, 0});
  if (fit == by_bytes_.end()) return std::nullopt;
  const auto [range_bytes, offset] = *fit;
  Erase(ranges_.find(offset));
  if (range_bytes != bytes) Insert(offset + bytes, range_bytes - bytes);
  return offset;
}

void SliceAllocator::Free(size_t offset, size_t size_bytes) {
  const size_t bytes = Rounded(size_bytes);
  free_bytes_ += bytes;
  Bin* bin = FindBin(bytes);
  if (bin == nullptr && bins_.size() < kMaxCachedSizes) bin = &bins_.emplace_back(Bin{bytes, {}});
  if (bin != nullptr && bin->offsets.size() < kMaxCachedSlices) {
    bin->offsets.push_back(offset);
  } else {
    Insert(offset, bytes);
  }
}

void SliceAllocator::Insert(size_t offset, size_t bytes) {
  auto next = ranges_.lower_bound(offset);
  if (next != ranges_.end() && next->first == offset + bytes) {
    bytes += next->second;
    Erase(next);
    next = ranges_.lower_bound(offset);
  }
  if (next != ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      Erase(previous);
    }
  }
  ranges_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
}

void SliceAllocator::Erase(std::map<size_t, size_t>::iterator range) {
  by_bytes_.erase({range->second, range->first});
  ranges_.erase(range);
}

void SliceAllocator::EmptyBins() {
  std::vector<Bin> bins = std::move(bins_);
  bins_.clear();
  for (const Bin& bin : bins) {
    for (const size_t offset : bin.offsets) Insert(offset, bin.bytes);
  }
}

size_t SliceAllocator::LargestFree() {
  EmptyBins();
  return by_bytes_.empty() ? 0 : by_bytes_.rbegin()->first;
}

}  // namespace rdmad::sdk
