#include "daemon/wire/bytes.h"

#include <array>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

constexpr std::array<uint8_t, 8> kBytes = {0x81, 0x02, 0x93, 0x04, 0xa5, 0x06, 0xb7, 0x08};

TEST(Bytes, LoadsBigEndian) {
  EXPECT_EQ(LoadBe16(kBytes.data()), 0x8102);
  EXPECT_EQ(LoadBe24(kBytes.data()), 0x810293u);
  EXPECT_EQ(LoadBe32(kBytes.data()), 0x81029304u);
  EXPECT_EQ(LoadBe64(kBytes.data()), 0x81029304a506b708u);
}

TEST(Bytes, LoadsLittleEndian) {
  EXPECT_EQ(LoadLe32(kBytes.data()), 0x04930281u);
}

TEST(Bytes, StoresWhatItLoads) {
  std::array<uint8_t, 8> out{};
  StoreBe64(out.data(), LoadBe64(kBytes.data()));
  EXPECT_EQ(out, kBytes);
  StoreLe32(out.data(), 0x01020304);
  EXPECT_EQ(out[0], 4);
  EXPECT_EQ(out[3], 1);
}

TEST(Bytes, StoresTouchOnlyTheirBytes) {
  std::array<uint8_t, 5> out{};
  StoreBe16(out.data() + 1, 0xffff);
  EXPECT_EQ(out, (std::array<uint8_t, 5>{0, 0xff, 0xff, 0, 0}));
  out = {};
  StoreBe24(out.data() + 1, 0xffffffff);
  EXPECT_EQ(out, (std::array<uint8_t, 5>{0, 0xff, 0xff, 0xff, 0}));
}

TEST(Bytes, WorksAtCompileTime) {
  static_assert(LoadBe32(kBytes.data() + 1) == 0x029304a5);
}

}  // namespace
}  // namespace rdmad::wire
