#include "daemon/wire/gf2.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rdmad::wire::gf2 {
namespace {

// Powers by whole bytes: x^(sign * 8 * n) = low[n % 256] * high[n / 256].
struct PowerTable {
  std::array<uint32_t, 256> low{};
  std::array<uint32_t, 512> high{};
};

constexpr PowerTable MakePowerTable(uint32_t byte_step, uint32_t page_step) {
  PowerTable table;
  table.low[0] = table.high[0] = kOne;
  for (size_t i = 1; i < table.low.size(); ++i) {
    table.low[i] = MultiplyPortable(table.low[i - 1], byte_step);
  }
  for (size_t i = 1; i < table.high.size(); ++i) {
    table.high[i] = MultiplyPortable(table.high[i - 1], page_step);
  }
  return table;
}

constexpr uint32_t kBitsPerPage = 8 * 256;
constexpr PowerTable kPowers = MakePowerTable(PowerOfX(8), PowerOfX(kBitsPerPage));
constexpr PowerTable kInversePowers =
    MakePowerTable(PowerOfX(kOrder - 8), PowerOfX(kOrder - kBitsPerPage));
static_assert(MultiplyPortable(PowerOfX(8), PowerOfX(kOrder - 8)) == kOne);

#if defined(__x86_64__)
// The 64-bit carry-less product, then Barrett's reduction of it modulo P (Intel's white paper "Fast
// CRC Computation for Generic Polynomials Using PCLMULQDQ", bit-reflected form; both constants are
// 33 bits wide).
__attribute__((target("pclmul"))) uint32_t MultiplyClmul(uint32_t a, uint32_t b) noexcept {
  constexpr long long kPolynomial33 = (static_cast<long long>(kPolynomial) << 1) | 1;
  constexpr long long kBarrett33 = 0x1f7011641;  // floor(x^64 / P), reflected
  const __m128i constants = _mm_set_epi64x(kBarrett33, kPolynomial33);
  const __m128i raw = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(a)),
                                           _mm_cvtsi32_si128(static_cast<int>(b)), 0x00);
  // The product of two reflected words sits one bit too low.
  const auto product = static_cast<uint64_t>(_mm_cvtsi128_si64(raw)) << 1;
  const __m128i low = _mm_cvtsi32_si128(static_cast<int>(product));
  const __m128i quotient = _mm_clmulepi64_si128(low, constants, 0x10);
  const __m128i multiple =
      _mm_clmulepi64_si128(_mm_cvtsi32_si128(_mm_cvtsi128_si32(quotient)), constants, 0x00);
  return static_cast<uint32_t>((product ^ static_cast<uint64_t>(_mm_cvtsi128_si64(multiple))) >>
                               32);
}

const bool kHasClmul = __builtin_cpu_supports("pclmul") != 0;
#endif

uint32_t Power(const PowerTable& table, uint32_t bytes) noexcept {
  return Multiply(table.low[bytes & 0xff], table.high[bytes >> 8 & 0x1ff]);
}

}  // namespace

uint32_t Multiply(uint32_t a, uint32_t b) noexcept {
#if defined(__x86_64__)
  if (kHasClmul) return MultiplyClmul(a, b);
#endif
  return MultiplyPortable(a, b);
}

uint32_t PowerOfXBytes(uint32_t bytes) noexcept {
  return Power(kPowers, bytes);
}

uint32_t InversePowerOfXBytes(uint32_t bytes) noexcept {
  return Power(kInversePowers, bytes);
}

}  // namespace rdmad::wire::gf2
