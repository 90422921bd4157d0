// Copies between private memory and memory that a client may be writing to at this moment.
//
// memcpy would be a data race in C++'s terms. Eight bytes at a time, relaxed and atomic, compile to
// plain moves; a copy taken while the client writes is some mixture of old and new, which is why
// the copy, and nothing but the copy, is checked afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rdmad::engine {

// `bytes` is a multiple of 8, `from` is aligned to 8.
inline void CopyFromShared(void* to, const void* from, size_t bytes) noexcept {
  const uint64_t* const words = static_cast<const uint64_t*>(from);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t word = __atomic_load_n(words + i, __ATOMIC_RELAXED);
    std::memcpy(static_cast<std::byte*>(to) + i * sizeof(word), &word, sizeof(word));
  }
}

// `bytes` is a multiple of 8, `to` is aligned to 8.
inline void CopyToShared(void* to, const void* from, size_t bytes) noexcept {
  uint64_t* const words = static_cast<uint64_t*>(to);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(from) + i * sizeof(word), sizeof(word));
    __atomic_store_n(words + i, word, __ATOMIC_RELAXED);
  }
}

}  // namespace rdmad::engine
