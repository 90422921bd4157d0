#include "daemon/device/soft/link_rate.h"

#include <string>

#include "daemon/device/types.h"
#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

TEST(LinkRate, CarriesWhatTheInterfaceDoes) {
  const struct {
    uint32_t mbps;
    device::LinkRate rate;
  } kTable[] = {
      {0, {1, 1}},
      {1'000, {1, 1}},
      {2'500, {1, 1}},
      {2'501, {1, 4}},
      {10'000, {1, 4}},
      {25'000, {1, 32}},
      {40'000, {2, 4}},
      {50'000, {1, 64}},
      {100'000, {2, 32}},
      {200'000, {2, 64}},
      {400'000, {2, 128}},
      {800'000, {4, 128}},
      {UINT32_MAX, {4, 128}},
  };
  for (const auto& row : kTable) EXPECT_EQ(LinkRateOf(row.mbps), row.rate) << row.mbps;
}

TEST(LinkRate, IsUnknownWhereNobodyTells) {
  EXPECT_EQ(InterfaceMbps("lo"), 0u);
  EXPECT_EQ(InterfaceMbps("nosuch0"), 0u);
  EXPECT_EQ(InterfaceMbps(std::string(300, 'x')), 0u);
}

}  // namespace
}  // namespace rdmad::soft
