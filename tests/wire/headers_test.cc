#include "daemon/wire/headers.h"

#include <cstring>

#include "gtest/gtest.h"

namespace rdmad::wire {
namespace {

template <typename Header, size_t kBytes>
Header From(const uint8_t (&bytes)[kBytes]) {
  static_assert(sizeof(Header) == kBytes);
  Header header;
  std::memcpy(&header, bytes, kBytes);
  return header;
}

TEST(Bth, Fields) {
  const auto bth =
      From<Bth>({0x64, 0xb0, 0x12, 0x34, 0xc0, 0xab, 0xcd, 0xef, 0x80, 0x01, 0x02, 0x03});
  EXPECT_EQ(bth.opcode, 0x64);
  EXPECT_TRUE(bth.solicited());
  EXPECT_FALSE(bth.mig_req());
  EXPECT_EQ(bth.pad(), 3);
  EXPECT_EQ(bth.version(), 0);
  EXPECT_EQ(bth.pkey(), PKey(0x1234));
  EXPECT_TRUE(bth.fecn());
  EXPECT_TRUE(bth.becn());
  EXPECT_EQ(bth.dest_qpn(), Qpn(0xabcdef));
  EXPECT_TRUE(bth.wants_ack());
  EXPECT_EQ(bth.psn(), Psn(0x010203));
}

TEST(Bth, ReservedBitsAreNotFields) {
  const auto bth = From<Bth>({0, 0x0f, 0, 0, 0x3f, 0, 0, 0, 0x7f, 0, 0, 0});
  EXPECT_FALSE(bth.solicited());
  EXPECT_EQ(bth.pad(), 0);
  EXPECT_EQ(bth.version(), 15);
  EXPECT_FALSE(bth.fecn());
  EXPECT_FALSE(bth.becn());
  EXPECT_FALSE(bth.wants_ack());
}

TEST(Deth, Fields) {
  const auto deth = From<Deth>({0x80, 0x01, 0x00, 0x00, 0xff, 0x00, 0x00, 0x01});
  EXPECT_EQ(deth.qkey(), kGsiQkey);
  EXPECT_EQ(deth.src_qpn(), kGsiQpn);
}

TEST(Reth, Fields) {
  const auto reth = From<Reth>({1, 2, 3, 4, 5, 6, 7, 8, 0xa, 0xb, 0xc, 0xd, 0xff, 0, 0, 1});
  EXPECT_EQ(reth.va(), 0x0102030405060708u);
  EXPECT_EQ(reth.rkey(), Rkey(0x0a0b0c0d));
  EXPECT_EQ(reth.dma_length_bytes(), 0xff000001u);
}

TEST(AtomicEth, Fields) {
  const auto atomic = From<AtomicEth>(
      {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4});
  EXPECT_EQ(atomic.va(), 1u);
  EXPECT_EQ(atomic.rkey(), Rkey(2));
  EXPECT_EQ(atomic.swap_or_add(), 3u);
  EXPECT_EQ(atomic.compare(), 4u);
}

TEST(Aeth, Fields) {
  const auto aeth = From<Aeth>({0x60, 1, 2, 3});
  EXPECT_EQ(aeth.syndrome, 0x60);
  EXPECT_EQ(aeth.msn(), Msn(0x010203));
}

}  // namespace
}  // namespace rdmad::wire
