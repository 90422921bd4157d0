// What the integration tests rest on: packets that cross the wire between two namespaces arrive
// whole, and the faults that a test orders are those that happen.
#include "tests/support/packet_wire.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/packet_capture.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"
#include "tests/support/two_hosts.h"

namespace rdmad::testing {
namespace {

constexpr uint16_t kPort = 4791;
constexpr size_t kPacketBytes = 1000;

sockaddr_in6 AddressOf(const std::string& text) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(kPort);
  ::inet_pton(AF_INET6, text.c_str(), &address.sin6_addr);
  return address;
}

class PacketWireTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { (void)EnterPrivateNetwork(); }

  void SetUp() override {
    if (!EnterPrivateNetwork().ok()) GTEST_SKIP() << EnterPrivateNetwork().message();
    ASSERT_OK_AND_ASSIGN(hosts_, TwoHosts::Create({.wire = true}));
    hosts_->host(0).Call([&] { sender_.Reset(::socket(AF_INET6, SOCK_DGRAM, 0)); });
    hosts_->host(1).Call([&] {
      receiver_.Reset(::socket(AF_INET6, SOCK_DGRAM, 0));
      const sockaddr_in6 any = AddressOf("::");
      ASSERT_EQ(::bind(receiver_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    });
    const timeval patience{0, 100'000};
    ::setsockopt(receiver_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  // Sends `count` packets in one call, as the daemon does. Packet i is full of i + 1.
  void SendBatch(const std::string& to, int count) {
    const int segment = kPacketBytes;
    ASSERT_EQ(::setsockopt(sender_.get(), SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment)), 0);
    std::vector<uint8_t> bytes;
    for (int i = 0; i < count; ++i) bytes.insert(bytes.end(), kPacketBytes, uint8_t(i + 1));
    const sockaddr_in6 address = AddressOf(to);
    ASSERT_EQ(::sendto(sender_.get(), bytes.data(), bytes.size(), 0,
                       reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              static_cast<ssize_t>(bytes.size()));
  }

  // The first bytes of all packets that arrive.
  std::vector<int> Receive() {
    std::vector<int> numbers;
    std::vector<uint8_t> packet(65536);
    while (true) {
      const ssize_t bytes = ::recv(receiver_.get(), packet.data(), packet.size(), 0);
      if (bytes < 0) return numbers;
      EXPECT_EQ(bytes, static_cast<ssize_t>(kPacketBytes));
      EXPECT_EQ(packet[0], packet[kPacketBytes - 1]);
      numbers.push_back(packet[0]);
    }
  }

  std::unique_ptr<TwoHosts> hosts_;
  UniqueFd sender_;
  UniqueFd receiver_;
};

TEST_F(PacketWireTest, PassesABatchAsSinglePacketsInOrder) {
  for (const char* to : {"::ffff:10.77.0.2", "fd77::2"}) {
    SendBatch(to, 5);
    EXPECT_EQ(Receive(), (std::vector<int>{1, 2, 3, 4, 5})) << to;
  }
  EXPECT_EQ(hosts_->wire()->counts().seen, 10u);
}

TEST_F(PacketWireTest, LosesEverythingAtFullLoss) {
  hosts_->wire()->SetFaults({.loss = 1});
  SendBatch("fd77::2", 5);
  EXPECT_EQ(Receive(), std::vector<int>{});
  EXPECT_EQ(hosts_->wire()->counts().lost, 5u);
}

TEST_F(PacketWireTest, RepeatsEachPacketAtFullDuplication) {
  hosts_->wire()->SetFaults({.duplicate = 1});
  SendBatch("fd77::2", 3);
  EXPECT_EQ(Receive(), (std::vector<int>{1, 1, 2, 2, 3, 3}));
}

TEST_F(PacketWireTest, ReordersWithoutLosing) {
  hosts_->wire()->SetFaults({.reorder = 0.3, .seed = 3});
  SendBatch("fd77::2", 50);
  std::vector<int> got = Receive();
  EXPECT_FALSE(std::is_sorted(got.begin(), got.end()));
  std::sort(got.begin(), got.end());
  std::vector<int> all(50);
  for (int i = 0; i < 50; ++i) all[i] = i + 1;
  EXPECT_EQ(got, all);
}

TEST_F(PacketWireTest, ShowsEachPacketToTheHook) {
  int packets = 0;
  hosts_->wire()->SetHook([&](WireDirection direction, std::span<uint8_t> ip) {
    EXPECT_EQ(direction, WireDirection::kAToB);
    EXPECT_EQ(ip.size(), 40 + 8 + kPacketBytes);
    return ++packets == 2 ? WireVerdict::kDrop : WireVerdict::kPass;
  });
  SendBatch("fd77::2", 3);
  EXPECT_EQ(Receive(), (std::vector<int>{1, 3}));
}

TEST_F(PacketWireTest, ACaptureHoldsEachPacketOnce) {
  const TempDir folder;
  ASSERT_OK_AND_ASSIGN(auto capture, PacketCapture::Start(hosts_->host(0), TwoHosts::kInterface,
                                                          folder.path() + "/x.pcap"));
  SendBatch("::ffff:10.77.0.2", 7);
  EXPECT_EQ(Receive().size(), 7u);
  ASSERT_OK_AND_ASSIGN(const uint64_t packets, capture->Stop());
  EXPECT_EQ(packets, 7u);
}

}  // namespace
}  // namespace rdmad::testing
