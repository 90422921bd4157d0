// The one source of chance of a simulation: everything that happens in it follows from the seed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace rdmad::sim {

// SplitMix64: small, quick, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, limit); 0 if limit is 0.
  uint32_t Below(uint64_t limit) {
    return limit == 0 ? 0 : static_cast<uint32_t>((Next() >> 32) % limit);
  }
  // In [from, to].
  uint32_t Between(uint32_t from, uint32_t to) { return from + Below(uint64_t{to} - from + 1); }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability;
  }
  template <class T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Below(values.size())];
  }
  void Fill(std::span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size();) {
      const uint64_t value = Next();
      for (int shift = 0; shift < 64 && i < bytes.size(); shift += 8) {
        bytes[i++] = static_cast<std::byte>(value >> shift);
      }
    }
  }

 private:
  uint64_t state_;
};

}  // namespace rdmad::sim
