// Arithmetic on polynomials over GF(2) modulo the CRC-32 polynomial P (Ethernet's), in the
// reflected notation that zlib and ISA-L use: bit 31 of a word is the coefficient of x^0, bit 0
// that of x^31.
//
// Why: a CRC is affine. If two messages of one length differ only in some bits, the difference
// (xor) of their CRCs depends on those bits and their place alone: a difference d, read as a
// polynomial, that ends n bits before the end of the message changes the CRC by d * x^(n + 32) mod
// P. So the effect of a header field on a CRC is one multiplication, and since x has the
// multiplicative order 2^32 - 1 in this field, so is the way back: multiply by x^-(n + 32).
#pragma once

#include <array>
#include <cstdint>

namespace rdmad::wire::gf2 {

inline constexpr uint32_t kPolynomial = 0xedb88320;  // P without x^32, reflected
inline constexpr uint32_t kOne = 1u << 31;           // x^0
inline constexpr uint32_t kOrder = 0xffffffff;       // x^kOrder == 1

// a * x mod P
constexpr uint32_t TimesX(uint32_t a) noexcept {
  return a >> 1 ^ (kPolynomial & (0 - (a & 1)));
}

// a * b mod P. Portable; takes some 30 ns. Multiply() is the fast one.
constexpr uint32_t MultiplyPortable(uint32_t a, uint32_t b) noexcept {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= b & (0 - (a >> bit & 1));
    b = TimesX(b);
  }
  return product;
}

// x^n mod P; negative powers are x^(kOrder - n).
constexpr uint32_t PowerOfX(uint32_t n) noexcept {
  uint32_t result = kOne;
  uint32_t square = kOne >> 1;
  for (; n != 0; n >>= 1) {
    if (n & 1) result = MultiplyPortable(result, square);
    square = MultiplyPortable(square, square);
  }
  return result;
}

// a * b mod P, with the processor's carry-less multiplication where it has one.
uint32_t Multiply(uint32_t a, uint32_t b) noexcept;

// x^(8 * bytes) and x^(-8 * bytes) for any bytes < 2^17, by two table look-ups and one product.
uint32_t PowerOfXBytes(uint32_t bytes) noexcept;
uint32_t InversePowerOfXBytes(uint32_t bytes) noexcept;

}  // namespace rdmad::wire::gf2
