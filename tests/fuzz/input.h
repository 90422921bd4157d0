// Reads a fuzzer's input piece by piece; at its end everything is zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace rdmad::fuzz {

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  template <class T>
  T Take() {
    T value{};
    const std::span<const uint8_t> from = TakeBytes(sizeof(T));
    if (!from.empty()) std::memcpy(&value, from.data(), from.size());
    return value;
  }
  // At most so many.
  std::span<const uint8_t> TakeBytes(size_t count) {
    const std::span<const uint8_t> taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace rdmad::fuzz
