// Bytes that tell where they belong: every seed gives another sequence, so that what was lost,
// doubled, shifted or mixed up with another message shows at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace rdmad::testing {

// splitmix64. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators".
inline uint64_t PatternWord(uint64_t seed, uint64_t index) noexcept {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + (index + 1) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline void FillPattern(std::span<std::byte> bytes, uint64_t seed) noexcept {
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = PatternWord(seed, at / 8);
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
  }
}

// Where the first byte is that is not what FillPattern would have put there.
inline std::optional<size_t> PatternMismatch(std::span<const std::byte> bytes,
                                             uint64_t seed) noexcept {
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = PatternWord(seed, at / 8);
    if (std::memcmp(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at)) != 0) {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace rdmad::testing
