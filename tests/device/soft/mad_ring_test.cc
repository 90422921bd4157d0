#include "daemon/device/soft/mad_ring.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <memory>
#include <thread>

#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/soft_mad_io.h"
#include "daemon/wire/cm/cm_packet.h"
#include "gtest/gtest.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

const Flow kFlow = {IpAddress::FromV4(127, 0, 0, 2), IpAddress::FromV4(127, 0, 0, 3)};

bool IsReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

uint64_t Value(const std::vector<device::CounterValue>& values, const std::string& name) {
  for (const auto& value : values) {
    if (value.name == name) return value.value;
  }
  return 999999;
}

class MadRingTest : public ::testing::Test {
 protected:
  wire::PacketView Mad(uint8_t first_byte) {
    mad_[0] = first_byte;
    wire::PacketView packet;
    static_cast<wire::PacketFields&>(packet) = wire::CmPacketFields(wire::Psn(7));
    packet.payload = mad_;
    return packet;
  }

  std::unique_ptr<SoftMadIo> io_ = std::move(SoftMadIo::Create()).value();
  std::array<uint8_t, kMadBytes> mad_{};
};

TEST_F(MadRingTest, HandsMadsOverInOrder) {
  MadRing* ring = io_->AddRing();
  ring->OnPacket(kFlow, Mad(1));
  ring->OnPacket(kFlow, Mad(2));
  EXPECT_FALSE(IsReadable(io_->poll_fd()));
  ring->Flush();
  EXPECT_TRUE(IsReadable(io_->poll_fd()));
  ReceivedMad mad;
  ASSERT_TRUE(io_->Receive(&mad));
  EXPECT_EQ(mad.mad[0], 1);
  EXPECT_EQ(mad.flow.remote, kFlow.remote);
  EXPECT_EQ(mad.src_qpn, wire::kGsiQpn);
  EXPECT_TRUE(IsReadable(io_->poll_fd()));
  ASSERT_TRUE(io_->Receive(&mad));
  EXPECT_EQ(mad.mad[0], 2);
  EXPECT_FALSE(io_->Receive(&mad));
  EXPECT_FALSE(IsReadable(io_->poll_fd()));
}

TEST_F(MadRingTest, WordOfFirstDataKeepsItsPlaceAmongMads) {
  MadRing* ring = io_->AddRing();
  ring->OnPacket(kFlow, Mad(1));
  ring->OnFirstData(kFlow, 0x22, 0x11);
  ring->OnPacket(kFlow, Mad(2));
  ring->Flush();
  ReceivedMad word;
  ASSERT_TRUE(io_->Receive(&word));
  EXPECT_EQ(word.first_data_of, wire::Qpn());
  ASSERT_TRUE(io_->Receive(&word));
  EXPECT_EQ(word.first_data_of, wire::Qpn(0x22));
  EXPECT_EQ(word.src_qpn, wire::Qpn(0x11));
  EXPECT_EQ(word.flow.remote, kFlow.remote);
  ASSERT_TRUE(io_->Receive(&word));
  EXPECT_EQ(word.first_data_of, wire::Qpn());
  EXPECT_EQ(word.mad[0], 2);
}

TEST_F(MadRingTest, FullRingDropsTheNewestAndCounts) {
  MadRing* ring = io_->AddRing();
  for (uint32_t i = 0; i < MadRing::kDefaultCapacity + 3; ++i)
    ring->OnPacket(kFlow, Mad(static_cast<uint8_t>(i)));
  EXPECT_EQ(Value(io_->Counters(), "mad_rx_drop_full"), 3u);
  EXPECT_EQ(Value(io_->Counters(), "mad_rx_packets"), MadRing::kDefaultCapacity);
  ReceivedMad mad;
  uint32_t count = 0;
  while (io_->Receive(&mad)) EXPECT_EQ(mad.mad[0], static_cast<uint8_t>(count++));
  EXPECT_EQ(count, MadRing::kDefaultCapacity);
}

TEST_F(MadRingTest, DropsWhatIsNoMad) {
  MadRing* ring = io_->AddRing();
  std::vector<wire::PacketView> bad(4, Mad(0));
  bad[0].deth.qkey = wire::Qkey(0x80010001);
  bad[1].payload = bad[1].payload.first(252);
  bad[2].opcode = wire::Opcode::kUdSendOnlyImm;
  bad[3].pkey = wire::PKey(0x8001);
  for (const auto& packet : bad) ring->OnPacket(kFlow, packet);
  ReceivedMad mad;
  EXPECT_FALSE(io_->Receive(&mad));
  EXPECT_EQ(Value(io_->Counters(), "mad_rx_drop_malformed"), bad.size());
}

TEST_F(MadRingTest, ServesSeveralEnginesByTurns) {
  MadRing* a = io_->AddRing();
  MadRing* b = io_->AddRing();
  for (int i = 0; i < 3; ++i) a->OnPacket(kFlow, Mad(1));
  b->OnPacket(kFlow, Mad(2));
  ReceivedMad mad;
  ASSERT_TRUE(io_->Receive(&mad));
  ASSERT_TRUE(io_->Receive(&mad));
  EXPECT_EQ(mad.mad[0], 2);
}

TEST_F(MadRingTest, NoWakeUpIsLostBetweenThreads) {
  constexpr int kCount = 20000;
  MadRing* ring = io_->AddRing();
  std::thread engine([&] {
    for (int i = 0; i < kCount; ++i) {
      const wire::PacketView packet = Mad(static_cast<uint8_t>(i));
      // The engine drops rather than waits; a test that counts waits.
      while (Value(io_->Counters(), "mad_rx_packets") != static_cast<uint64_t>(i) + 1) {
        ring->OnPacket(kFlow, packet);
        ring->Flush();
      }
    }
  });
  ReceivedMad mad;
  for (int i = 0; i < kCount;) {
    pollfd entry = {io_->poll_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 10000), 1) << "asleep with " << i << " received";
    while (io_->Receive(&mad)) ASSERT_EQ(mad.mad[0], static_cast<uint8_t>(i++));
  }
  engine.join();
}

TEST_F(MadRingTest, SendsFromKnownAddressesOnly) {
  std::array<uint8_t, kMadBytes> mad{};
  EXPECT_FALSE(io_->SendMad(kFlow, mad));
  auto port = UdpPort::Open(kFlow.local, testing::TestPort());
  ASSERT_TRUE(port.ok()) << port.status();
  io_->AddPort(port->get());
  EXPECT_TRUE(io_->IsLocal(kFlow.local));
  EXPECT_FALSE(io_->IsLocal(kFlow.remote));
  EXPECT_TRUE(io_->SendMad(kFlow, mad));
  io_->RemovePort(port->get());
  EXPECT_FALSE(io_->SendMad(kFlow, mad));
}

}  // namespace
}  // namespace rdmad::soft
