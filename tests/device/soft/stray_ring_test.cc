#include "daemon/device/soft/stray_ring.h"

#include <poll.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/wire/packet.h"
#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

const Flow kFlow = {IpAddress::FromV4(127, 0, 0, 2), IpAddress::FromV4(127, 0, 0, 3)};

bool IsReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

// A SEND of a number to a QP, as a receiver has parsed it.
class Packet {
 public:
  explicit Packet(uint32_t number, size_t payload_bytes = 8) {
    wire::PacketFields fields;
    fields.opcode = wire::Opcode::kRcSendOnly;
    fields.dest_qpn = wire::Qpn(number % 0xffff + 2);
    fields.psn = wire::Psn(number & 0xffffff);
    bytes_.resize(wire::UdpPayloadBytes(fields.opcode, payload_bytes));
    const size_t header_bytes = wire::BuildHeaders(
        fields, payload_bytes, std::span<uint8_t, wire::kMaxHeaderBytes>(header_));
    std::copy_n(header_.begin(), header_bytes, bytes_.begin());
    std::memcpy(&bytes_[header_bytes], &number, sizeof(number));
    EXPECT_EQ(wire::ParsePacket(bytes_, &view_), wire::DropReason::kNone);
  }
  const wire::PacketView& view() const { return view_; }

 private:
  std::array<uint8_t, wire::kMaxHeaderBytes> header_{};
  std::vector<uint8_t> bytes_;
  wire::PacketView view_;
};

uint32_t NumberOf(const wire::PacketView& packet) {
  uint32_t number;
  std::memcpy(&number, packet.payload.data(), sizeof(number));
  return number;
}

// What is in the ring, up to `limit` packets.
std::vector<uint32_t> Take(StrayRing& ring, int limit = 1000) {
  std::vector<uint32_t> numbers;
  ring.TakeUpTo(limit, [&](const Flow& flow, const wire::PacketView& packet) {
    EXPECT_EQ(flow, kFlow);
    numbers.push_back(NumberOf(packet));
  });
  return numbers;
}

TEST(StrayRing, HandsPacketsOverInOrderAndWhole) {
  const auto ring = StrayRing::Create(8).value();
  ASSERT_TRUE(ring->Push(kFlow, Packet(7).view()));
  ASSERT_TRUE(ring->Push(kFlow, Packet(8, 4096).view()));
  const Packet sent(7);
  size_t payload_bytes = 0;
  EXPECT_EQ(ring->TakeUpTo(1,
                           [&](const Flow&, const wire::PacketView& packet) {
                             EXPECT_EQ(packet.dest_qpn, sent.view().dest_qpn);
                             EXPECT_EQ(packet.psn, sent.view().psn);
                             EXPECT_EQ(packet.opcode, sent.view().opcode);
                             payload_bytes = packet.payload.size();
                           }),
            1);
  EXPECT_EQ(payload_bytes, 8u);
  EXPECT_EQ(Take(*ring), std::vector<uint32_t>({8}));
  EXPECT_TRUE(Take(*ring).empty());
}

TEST(StrayRing, TakesTheLargestPacketThereIs) {
  const auto ring = StrayRing::Create(2).value();
  wire::PacketFields fields;
  fields.opcode = wire::Opcode::kRcWriteOnlyImm;
  std::vector<uint8_t> bytes(wire::UdpPayloadBytes(fields.opcode, 4096));
  wire::BuildHeaders(fields, 4096,
                     std::span<uint8_t, wire::kMaxHeaderBytes>(bytes.data(), wire::kMaxHeaderBytes));
  wire::PacketView packet;
  ASSERT_EQ(wire::ParsePacket(bytes, &packet), wire::DropReason::kNone);
  EXPECT_TRUE(ring->Push(kFlow, packet));
  EXPECT_EQ(ring->TakeUpTo(1, [](const Flow&, const wire::PacketView&) {}), 1);
}

TEST(StrayRing, RefusesWhatFindsItFull) {
  const auto ring = StrayRing::Create(4).value();
  for (uint32_t round = 0; round < 5; ++round) {
    for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(ring->Push(kFlow, Packet(i).view()));
    EXPECT_FALSE(ring->Push(kFlow, Packet(4).view()));
    EXPECT_EQ(Take(*ring, 1), std::vector<uint32_t>({0}));
    EXPECT_TRUE(ring->Push(kFlow, Packet(5).view()));
    EXPECT_EQ(Take(*ring), std::vector<uint32_t>({1, 2, 3, 5}));
  }
}

TEST(StrayRing, RingsOnlyForASleeperAndOnce) {
  const auto ring = StrayRing::Create(8).value();
  ASSERT_TRUE(ring->Push(kFlow, Packet(1).view()));
  EXPECT_FALSE(IsReadable(ring->poll_fd()));
  EXPECT_FALSE(ring->PrepareSleep()) << "there is a packet";
  EXPECT_EQ(Take(*ring).size(), 1u);
  EXPECT_TRUE(ring->PrepareSleep());
  EXPECT_FALSE(IsReadable(ring->poll_fd()));
  ASSERT_TRUE(ring->Push(kFlow, Packet(2).view()));
  EXPECT_TRUE(IsReadable(ring->poll_fd()));
  EXPECT_EQ(Take(*ring).size(), 1u);
  EXPECT_FALSE(IsReadable(ring->poll_fd())) << "taken back";
  EXPECT_TRUE(ring->PrepareSleep());
  EXPECT_TRUE(Take(*ring).empty()) << "woken by something else";
  ASSERT_TRUE(ring->Push(kFlow, Packet(3).view()));
  EXPECT_FALSE(IsReadable(ring->poll_fd()));
}

TEST(StrayRing, BeingAskedTwiceBeforeASleepLeavesNoBellRinging) {
  const auto ring = StrayRing::Create(8).value();
  EXPECT_TRUE(ring->PrepareSleep());
  ASSERT_TRUE(ring->Push(kFlow, Packet(1).view()));
  EXPECT_FALSE(ring->PrepareSleep());
  EXPECT_EQ(Take(*ring).size(), 1u);
  EXPECT_TRUE(ring->PrepareSleep());
  EXPECT_FALSE(IsReadable(ring->poll_fd()));
}

// Engines as they are: several push, one takes and sleeps when there is nothing. (Thread sanitizer's
// test.)
TEST(StrayRing, NoPacketAndNoWakeUpIsLostBetweenThreads) {
  constexpr uint32_t kPushers = 3;
  constexpr uint32_t kEach = 20'000;
  const auto ring = StrayRing::Create(16).value();
  std::vector<std::thread> pushers;
  for (uint32_t pusher = 0; pusher < kPushers; ++pusher) {
    pushers.emplace_back([&ring, pusher] {
      for (uint32_t i = 0; i < kEach; ++i) {
        const Packet packet(pusher << 24 | i);
        while (!ring->Push(kFlow, packet.view())) std::this_thread::yield();
      }
    });
  }
  std::array<uint32_t, kPushers> next{};
  uint32_t taken = 0;
  bool stuck = false;
  while (taken < kPushers * kEach && !stuck) {
    taken += static_cast<uint32_t>(
        ring->TakeUpTo(8, [&](const Flow&, const wire::PacketView& packet) {
          const uint32_t number = NumberOf(packet);
          EXPECT_EQ(number & 0xffffff, next[number >> 24]++);
        }));
    if (taken == kPushers * kEach || !ring->PrepareSleep()) continue;
    pollfd entry = {ring->poll_fd(), POLLIN, 0};
    stuck = ::poll(&entry, 1, 10'000) != 1;
  }
  EXPECT_FALSE(stuck) << "asleep, and nobody rang; taken=" << taken;
  // Those that still wait for room end, too.
  while (taken < kPushers * kEach) {
    taken += static_cast<uint32_t>(ring->TakeUpTo(8, [](const Flow&, const wire::PacketView&) {}));
  }
  for (std::thread& pusher : pushers) pusher.join();
}

}  // namespace
}  // namespace rdmad::soft
