#include "daemon/wire/gf2.h"

#include <random>

#include "gtest/gtest.h"

namespace rdmad::wire::gf2 {
namespace {

TEST(Gf2, OneIsNeutral) {
  EXPECT_EQ(Multiply(kOne, 0x12345678), 0x12345678u);
  EXPECT_EQ(Multiply(0x12345678, kOne), 0x12345678u);
  EXPECT_EQ(Multiply(0, 0x12345678), 0u);
}

TEST(Gf2, FastProductIsThePortableOne) {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t a = random();
    const uint32_t b = random();
    ASSERT_EQ(Multiply(a, b), MultiplyPortable(a, b)) << std::hex << a << " * " << b;
  }
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 32; ++j)
      ASSERT_EQ(Multiply(1u << i, 1u << j), MultiplyPortable(1u << i, 1u << j));
  }
}

TEST(Gf2, TimesXIsTheProductWithX) {
  for (uint32_t a = 1; a != 0; a <<= 1) EXPECT_EQ(TimesX(a), MultiplyPortable(a, PowerOfX(1)));
}

TEST(Gf2, PowersAddTheirExponents) {
  EXPECT_EQ(PowerOfX(0), kOne);
  EXPECT_EQ(PowerOfX(1), kOne >> 1);
  EXPECT_EQ(PowerOfX(32), kPolynomial);
  EXPECT_EQ(MultiplyPortable(PowerOfX(1000), PowerOfX(234)), PowerOfX(1234));
  EXPECT_EQ(PowerOfX(kOrder), kOne);
}

TEST(Gf2, PowersByTable) {
  for (const uint32_t bytes : {0u, 1u, 255u, 256u, 257u, 4096u, 65'535u, 65'547u, 131'071u}) {
    EXPECT_EQ(PowerOfXBytes(bytes), PowerOfX(8 * bytes)) << bytes;
    EXPECT_EQ(Multiply(PowerOfXBytes(bytes), InversePowerOfXBytes(bytes)), kOne) << bytes;
  }
}

}  // namespace
}  // namespace rdmad::wire::gf2
