// Loads and stores of fixed-width integers at unaligned byte addresses, independent of the host's
// byte order.
//
// Everything on the RDMA wire is big-endian but the ICRC, which is sent least significant byte
// first. Compilers turn each of these functions into one move and one byte swap.
#pragma once

#include <cstdint>

namespace rdmad::wire {

constexpr uint16_t LoadBe16(const uint8_t* p) noexcept {
  return static_cast<uint16_t>(p[0] << 8 | p[1]);
}

constexpr uint32_t LoadBe24(const uint8_t* p) noexcept {
  return uint32_t{p[0]} << 16 | uint32_t{p[1]} << 8 | p[2];
}

constexpr uint32_t LoadBe32(const uint8_t* p) noexcept {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

constexpr uint64_t LoadBe64(const uint8_t* p) noexcept {
  return uint64_t{LoadBe32(p)} << 32 | LoadBe32(p + 4);
}

constexpr uint32_t LoadLe32(const uint8_t* p) noexcept {
  return uint32_t{p[3]} << 24 | uint32_t{p[2]} << 16 | uint32_t{p[1]} << 8 | p[0];
}

constexpr void StoreBe16(uint8_t* p, uint16_t value) noexcept {
  p[0] = static_cast<uint8_t>(value >> 8);
  p[1] = static_cast<uint8_t>(value);
}

// Stores the low 24 bits of `value`.
constexpr void StoreBe24(uint8_t* p, uint32_t value) noexcept {
  p[0] = static_cast<uint8_t>(value >> 16);
  p[1] = static_cast<uint8_t>(value >> 8);
  p[2] = static_cast<uint8_t>(value);
}

constexpr void StoreBe32(uint8_t* p, uint32_t value) noexcept {
  StoreBe16(p, static_cast<uint16_t>(value >> 16));
  StoreBe16(p + 2, static_cast<uint16_t>(value));
}

constexpr void StoreBe64(uint8_t* p, uint64_t value) noexcept {
  StoreBe32(p, static_cast<uint32_t>(value >> 32));
  StoreBe32(p + 4, static_cast<uint32_t>(value));
}

constexpr void StoreLe32(uint8_t* p, uint32_t value) noexcept {
  p[0] = static_cast<uint8_t>(value);
  p[1] = static_cast<uint8_t>(value >> 8);
  p[2] = static_cast<uint8_t>(value >> 16);
  p[3] = static_cast<uint8_t>(value >> 24);
}

}  // namespace rdmad::wire
