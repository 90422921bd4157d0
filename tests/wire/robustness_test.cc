// Hostile and damaged packets: the golden ones cut at every length, flipped in every bit, and
// mutated at random. Nothing may crash or read outside of the packet (run under ASan), nothing
// damaged may pass the ICRC more often than the mathematics of icrc_id.h allows.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "daemon/wire/cm/cm_message.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/packet.h"
#include "gtest/gtest.h"
#include "tests/support/rxe_captures.h"

namespace rdmad::wire {
namespace {

using testing::RxePacket;
using testing::RxePackets;

IcrcFlow FlowOf(const RxePacket& packet) {
  return IcrcFlow(packet.udp.source, packet.udp.destination, packet.udp.source_port,
                  packet.udp.destination_port);
}

// The verdicts of the three checks on a packet that claims to be of `original`'s flow.
struct Verdict {
  bool parses = false;
  bool good_for_true_id = false;  // what a receiver that sees the IP header would say
  bool good_df_required = false;
  bool good_any = false;
};

Verdict Judge(const RxePacket& original, const IcrcFlow& flow, std::span<const uint8_t> bytes) {
  PacketView view;
  if (ParsePacket(bytes, &view) != DropReason::kNone) return {};
  const uint32_t computed = flow.Compute(view.icrc_input);
  const uint32_t expected =
      flow.is_ipv4() ? IcrcForGsoIndex(computed, original.udp.ipv4_id, bytes.size()) : computed;
  return {true, view.icrc == expected,
          IcrcIsGood(flow, view.icrc, computed, bytes.size(), DfPolicy::kRequired),
          IcrcIsGood(flow, view.icrc, computed, bytes.size(), DfPolicy::kAny)};
}

TEST(Robustness, TruncatedPacketsNeverPass) {
  int tried = 0;
  int passed = 0;
  for (const RxePacket& packet : RxePackets()) {
    const IcrcFlow flow = FlowOf(packet);
    for (size_t bytes = 0; bytes < packet.udp.payload.size(); ++bytes) {
      // A copy of exactly this size, so that ASan sees a read beyond it.
      const auto copy = std::make_unique<uint8_t[]>(bytes);
      std::copy_n(packet.udp.payload.begin(), bytes, copy.get());
      const Verdict verdict = Judge(packet, flow, {copy.get(), bytes});
      EXPECT_FALSE(verdict.good_for_true_id) << packet.ToString() << " at " << bytes;
      tried += verdict.parses ? 1 : 0;
      passed += verdict.good_any ? 1 : 0;
    }
  }
  // Cutting is random damage to a receiver that does not know the id: one in 32,768 passes. (The
  // socket knows the UDP length, so that in life none of these arrives.)
  EXPECT_GT(tried, 20'000);
  EXPECT_LE(passed, 5);
}

TEST(Robustness, EveryFlippedBitIsSeen) {
  constexpr size_t kMaskedByte = 4;
  int flips = 0;
  for (const RxePacket& packet : RxePackets()) {
    const IcrcFlow flow = FlowOf(packet);
    std::vector<uint8_t> bytes(packet.udp.payload.begin(), packet.udp.payload.end());
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto flip = static_cast<uint8_t>(1 << bit % 8);
      bytes[bit / 8] ^= flip;
      const Verdict verdict = Judge(packet, flow, bytes);
      const bool masked = bit / 8 == kMaskedByte;
      ASSERT_EQ(verdict.good_for_true_id, masked) << packet.ToString() << " bit " << bit;
      ASSERT_EQ(verdict.good_df_required, masked) << packet.ToString() << " bit " << bit;
      bytes[bit / 8] ^= flip;
      ++flips;
    }
  }
  EXPECT_GT(flips, 900'000);
}

TEST(Robustness, FlippedAddressesAndPortsAreSeen) {
  for (const RxePacket& packet : RxePackets()) {
    PacketView view;
    ASSERT_EQ(ParsePacket(packet.udp.payload, &view), DropReason::kNone);
    const size_t size = packet.udp.payload.size();
    const auto good = [&](const IcrcFlow& flow) {
      return IcrcIsGood(flow, view.icrc, flow.Compute(view.icrc_input), size, DfPolicy::kRequired);
    };
    const testing::UdpDatagram& udp = packet.udp;
    const size_t first_byte = udp.source.is_v4() ? 12 : 0;
    for (size_t bit = 8 * first_byte; bit < 128; ++bit) {
      Gid source = udp.source.gid();
      Gid destination = udp.destination.gid();
      source[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      destination[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      EXPECT_FALSE(good(IcrcFlow(IpAddress::FromGid(source), udp.destination, udp.source_port,
                                 udp.destination_port)));
      EXPECT_FALSE(good(IcrcFlow(udp.source, IpAddress::FromGid(destination), udp.source_port,
                                 udp.destination_port)));
    }
    for (int bit = 0; bit < 16; ++bit) {
      const auto port = static_cast<uint16_t>(udp.source_port ^ 1 << bit);
      EXPECT_FALSE(good(IcrcFlow(udp.source, udp.destination, port, udp.destination_port)));
    }
  }
}

// What must hold of anything that parses: the view lies within the packet, and building from it and
// parsing again gives the same bytes.
void CheckView(std::span<const uint8_t> bytes, const PacketView& view) {
  ASSERT_TRUE(view.info().known());
  ASSERT_EQ(view.info().header_bytes + view.payload.size() + view.pad_bytes + kIcrcBytes,
            bytes.size());
  ASSERT_LE(view.payload.size(), kMaxMtuBytes);
  ASSERT_EQ(view.payload.data(), bytes.data() + view.info().header_bytes);
  ASSERT_EQ(view.icrc_input.size() + kIcrcBytes, bytes.size());
  std::array<uint8_t, kMaxHeaderBytes> head;
  const size_t head_bytes = BuildHeaders(view, view.payload.size(), head);
  ASSERT_EQ(head_bytes, view.info().header_bytes);
  if (view.pad_bytes != PadBytes(view.payload.size())) return;
  // Reserved bits are not carried over.
  std::vector<uint8_t> expected(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(head_bytes));
  expected[4] &= 0xc0;
  expected[8] &= 0x80;
  if (view.info().has(kHasDeth)) expected[16] = 0;
  ASSERT_TRUE(std::equal(expected.begin(), expected.end(), head.begin()));
}

TEST(Robustness, RandomMutationsAreHarmless) {
  const char* seed_text = std::getenv("RDMAD_TEST_SEED");
  const uint32_t seed =
      seed_text == nullptr ? 20'261'129 : static_cast<uint32_t>(std::atoll(seed_text));
  SCOPED_TRACE("RDMAD_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  int parsed = 0;
  for (int round = 0; round < 200'000; ++round) {
    const RxePacket& packet = RxePackets()[random() % RxePackets().size()];
    // Mostly the headers; now and then another length as well.
    size_t size = std::min<size_t>(packet.udp.payload.size(), 320);
    if (random() % 4 == 0) size = random() % 400;
    const auto bytes = std::make_unique<uint8_t[]>(size);
    std::copy_n(packet.udp.payload.begin(), std::min(size, packet.udp.payload.size()), bytes.get());
    const size_t mutations = random() % 8;
    for (size_t i = 0; i < mutations && size != 0; ++i) {
      bytes[random() % std::min<size_t>(size, random() % 2 == 0 ? 44 : size)] =
          static_cast<uint8_t>(random());
    }
    PacketView view;
    if (ParsePacket({bytes.get(), size}, &view) != DropReason::kNone) continue;
    ++parsed;
    ASSERT_NO_FATAL_FAILURE(CheckView({bytes.get(), size}, view));
    MadHeader header;
    CmMessage message;
    if (ParseCmMessage(view.payload, &header, &message) == MadDropReason::kNone) {
      std::array<uint8_t, kMadBytes> mad;
      BuildCmMad(header.transaction_id, message, mad);
      CmMessage again;
      ASSERT_EQ(ParseCmMessage(mad, &header, &again), MadDropReason::kNone);
      ASSERT_EQ(again, message);
    }
  }
  EXPECT_GT(parsed, 20'000);
}

TEST(Robustness, RandomBytesAreHarmless) {
  std::mt19937 random(7);
  for (int round = 0; round < 100'000; ++round) {
    const size_t size = random() % 100;
    const auto bytes = std::make_unique<uint8_t[]>(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(random());
    if (size > 1) bytes[1] &= 0x30;  // a good version, so that some get further
    PacketView view;
    if (ParsePacket({bytes.get(), size}, &view) != DropReason::kNone) continue;
    ASSERT_NO_FATAL_FAILURE(CheckView({bytes.get(), size}, view));
  }
}

}  // namespace
}  // namespace rdmad::wire
