#include "daemon/device/soft/link_mtu.h"

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

using device::Mtu;

TEST(LinkMtu, LargestThatFitsWithItsHeaders) {
  const struct {
    uint32_t interface_bytes;
    std::optional<Mtu> path;
  } kTable[] = {
      {0, std::nullopt},   {68, std::nullopt},       {339, std::nullopt}, {340, Mtu::k256},
      {576, Mtu::k256},    {595, Mtu::k256},         {596, Mtu::k512},    {1107, Mtu::k512},
      {1108, Mtu::k1024},  {1280, Mtu::k1024},       {1500, Mtu::k1024},  {2131, Mtu::k1024},
      {2132, Mtu::k2048},  {4179, Mtu::k2048},       {4180, Mtu::k4096},  {9000, Mtu::k4096},
      {65536, Mtu::k4096}, {0xffffffff, Mtu::k4096},
  };
  for (const auto& row : kTable)
    EXPECT_EQ(PathMtuOf(row.interface_bytes), row.path) << row.interface_bytes;
}

}  // namespace
}  // namespace rdmad::soft
