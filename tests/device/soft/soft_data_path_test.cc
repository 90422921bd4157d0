// Two soft devices in one process that talk through real sockets.
#include "daemon/device/soft/soft_data_path.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/socket_address.h"
#include "daemon/base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/device/soft/soft_host.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

using device::Mtu;
using device::PostResult;
using device::WcStatus;
using device::WrOpcode;
using rdmad::testing::TestPort;
using testing::RcEnd;
using testing::SoftHost;
using testing::TurnUntil;

constexpr size_t kBufferBytes = 5 << 20;

// Not ==, which goes byte by byte: TSan follows each.
bool BeginAlike(const std::vector<std::byte>& a, const std::vector<std::byte>& b, size_t bytes) {
  return a.size() >= bytes && b.size() >= bytes && std::memcmp(a.data(), b.data(), bytes) == 0;
}
bool Alike(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && BeginAlike(a, b, a.size());
}
constexpr uint32_t kSizes[] = {0,    1,    3,    4,     5,     1023,    1024,         1025,
                               4095, 4096, 4097, 61440, 65537, 1 << 20, (4 << 20) + 7};

struct PathCase {
  const char* name;
  const char* left;
  const char* right;
  Mtu mtu;
};

class SoftDataPathRc : public ::testing::TestWithParam<PathCase> {
 protected:
  void SetUp() override {
    const std::string right = GetParam().right;
    if (right == "fd00:4791::2" && !rdmad::testing::AddIpv6Address(right)) {
      GTEST_SKIP() << "needs a network namespace";
    }
    left_host_.emplace(std::vector<std::string>{GetParam().left}, TestPort());
    right_host_.emplace(std::vector<std::string>{right}, TestPort());
    ASSERT_EQ(left_host_->devices->devices().size(), 1u);
    ASSERT_EQ(right_host_->devices->devices().size(), 1u);
    left_.emplace(*left_host_, kBufferBytes);
    right_.emplace(*right_host_, kBufferBytes);
    RcEnd::Connect(*left_, *right_, GetParam().mtu);
    left_->FillRandomly(1);
    right_->FillRandomly(2);
  }

  bool AwaitSends(size_t count) {
    return TurnUntil({&*left_host_, &*right_host_},
                     [&] { return left_->sends.all.size() >= count; });
  }

  std::optional<SoftHost> left_host_;
  std::optional<SoftHost> right_host_;
  std::optional<RcEnd> left_;
  std::optional<RcEnd> right_;
};

INSTANTIATE_TEST_SUITE_P(
    , SoftDataPathRc,
    ::testing::Values(PathCase{"Ipv4Mtu4096", "127.0.0.2", "127.0.0.3", Mtu::k4096},
                      PathCase{"Ipv4Mtu1024", "127.0.0.2", "127.0.0.3", Mtu::k1024},
                      PathCase{"Ipv4Mtu256", "127.0.0.2", "127.0.0.3", Mtu::k256},
                      PathCase{"Ipv6Mtu4096", "::1", "fd00:4791::2", Mtu::k4096},
                      PathCase{"Ipv6Mtu1024", "::1", "fd00:4791::2", Mtu::k1024}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_P(SoftDataPathRc, SendDeliversTheBytes) {
  size_t count = 0;
  for (const uint32_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    left_->FillRandomly(bytes);
    ASSERT_EQ(right_->Recv(0, static_cast<uint32_t>(kBufferBytes)), PostResult::kOk);
    ASSERT_EQ(left_->Send(WrOpcode::kSend, 0, bytes), PostResult::kOk);
    ASSERT_TRUE(AwaitSends(++count));
    ASSERT_EQ(left_->sends.all.back().status, WcStatus::kSuccess);
    ASSERT_EQ(right_->receives.all.size(), count);
    EXPECT_EQ(right_->receives.all.back().byte_len, bytes);
    EXPECT_TRUE(BeginAlike(left_->buffer, right_->buffer, bytes));
  }
}

// The QP is in RTS, where applications hear nothing of that.
TEST_P(SoftDataPathRc, TheFirstRequestIsToldToTheCmOnce) {
  for (size_t count = 1; count <= 3; ++count) {
    ASSERT_EQ(right_->Recv(0, 64), PostResult::kOk);
    ASSERT_EQ(left_->Send(WrOpcode::kSend, 0, 64), PostResult::kOk);
    ASSERT_TRUE(AwaitSends(count));
  }
  ReceivedMad word;
  ASSERT_TRUE(right_host_->mads->Receive(&word));
  EXPECT_EQ(word.first_data_of, wire::Qpn(right_->qp->qpn()));
  EXPECT_EQ(word.src_qpn, wire::Qpn(left_->qp->qpn()));
  EXPECT_FALSE(right_host_->mads->Receive(&word));
  EXPECT_FALSE(left_host_->mads->Receive(&word)) << "it was sent no request";
  EXPECT_TRUE(right_host_->events.empty());
}

TEST_P(SoftDataPathRc, WriteDeliversTheBytesAndNoMore) {
  size_t count = 0;
  for (const uint32_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    right_->FillRandomly(bytes);
    std::vector<std::byte> expected = right_->buffer;
    std::copy_n(left_->buffer.begin() + 5, bytes, expected.begin() + 17);
    ASSERT_EQ(left_->Send(WrOpcode::kRdmaWrite, 5, bytes, &*right_, 17), PostResult::kOk);
    ASSERT_TRUE(AwaitSends(++count));
    ASSERT_EQ(left_->sends.all.back().status, WcStatus::kSuccess);
    EXPECT_TRUE(Alike(right_->buffer, expected));
  }
}

TEST_P(SoftDataPathRc, ReadFetchesTheBytesAndNoMore) {
  size_t count = 0;
  for (const uint32_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    left_->FillRandomly(bytes);
    std::vector<std::byte> expected = left_->buffer;
    std::copy_n(right_->buffer.begin() + 29, bytes, expected.begin() + 3);
    ASSERT_EQ(left_->Send(WrOpcode::kRdmaRead, 3, bytes, &*right_, 29), PostResult::kOk);
    ASSERT_TRUE(AwaitSends(++count));
    ASSERT_EQ(left_->sends.all.back().status, WcStatus::kSuccess);
    EXPECT_TRUE(Alike(left_->buffer, expected));
  }
}

TEST_P(SoftDataPathRc, ManyWritesInFlightAllArrive) {
  constexpr uint32_t kBytes = 64 * 1024;
  constexpr uint32_t kCount = 64;
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(left_->Send(WrOpcode::kRdmaWrite, i * kBytes, kBytes, &*right_, i * kBytes),
              PostResult::kOk);
  }
  ASSERT_TRUE(AwaitSends(kCount));
  EXPECT_TRUE(BeginAlike(left_->buffer, right_->buffer, kCount * kBytes));
  EXPECT_EQ(right_host_->Counter("udp_rx_drop_icrc"), 0u);
}

class SoftDataPathTest : public ::testing::Test {
 protected:
  SoftDataPathTest() { rdmad::testing::HavePrivateNetwork(); }
};

std::array<uint8_t, kMadBytes> SomeMad() {
  std::array<uint8_t, kMadBytes> mad;
  for (size_t i = 0; i < mad.size(); ++i) mad[i] = static_cast<uint8_t>(i * 7);
  return mad;
}

TEST_F(SoftDataPathTest, MadsTravelFromControlToControl) {
  SoftHost left({"127.0.0.2"}, TestPort());
  SoftHost right({"127.0.0.3"}, TestPort());
  const Flow flow = {IpAddress::FromV4(127, 0, 0, 2), IpAddress::FromV4(127, 0, 0, 3)};
  ASSERT_TRUE(left.mads->SendMad(flow, SomeMad()));
  ReceivedMad mad;
  ASSERT_TRUE(TurnUntil({&right}, [&] { return right.mads->Receive(&mad); }));
  EXPECT_EQ(mad.mad, SomeMad());
  EXPECT_EQ(mad.flow.local, flow.remote);
  EXPECT_EQ(mad.flow.remote, flow.local);
  EXPECT_EQ(mad.src_qpn, wire::kGsiQpn);
}

// The daemon's threads as they are: an engine that sends packets, and control, which sends and
// takes MADs on the same port. (Thread sanitizer's test.)
TEST_F(SoftDataPathTest, ControlUsesThePortBesideTheEngine) {
  constexpr int kMads = 2000;
  const Flow to_self = {IpAddress::FromV4(127, 0, 0, 2), IpAddress::FromV4(127, 0, 0, 2)};
  std::promise<SoftMadIo*> ready;
  std::atomic<bool> stop{false};
  bool copied = false;
  std::thread engine([&] {
    SoftHost left({"127.0.0.2"}, TestPort());
    SoftHost right({"127.0.0.3"}, TestPort());
    RcEnd a(left, kBufferBytes);
    RcEnd b(right, kBufferBytes);
    RcEnd::Connect(a, b, Mtu::k1024);
    a.FillRandomly(3);
    ready.set_value(left.mads.get());
    size_t posted = 0;
    while (!stop.load(std::memory_order_acquire) || a.sends.all.size() < posted) {
      if (!stop.load(std::memory_order_relaxed) && a.sends.all.size() == posted) {
        posted += a.Send(WrOpcode::kRdmaWrite, 0, 50000, &b) == PostResult::kOk ? 1 : 0;
      }
      left.Turn();
      right.Turn();
    }
    copied = posted > 0 && std::equal(a.buffer.begin(), a.buffer.begin() + 50000, b.buffer.begin());
  });
  SoftMadIo* const mads = ready.get_future().get();
  int received = 0;
  pollfd entry = {mads->poll_fd(), POLLIN, 0};
  for (int sent = 0; received < kMads;) {
    // No more at a time than the ring holds, so that none may be dropped.
    while (sent < kMads && sent - received < 500) sent += mads->SendMad(to_self, SomeMad()) ? 1 : 0;
    if (::poll(&entry, 1, 5000) != 1) break;
    for (ReceivedMad mad; mads->Receive(&mad); ++received) EXPECT_EQ(mad.mad, SomeMad());
  }
  stop.store(true, std::memory_order_release);
  engine.join();
  EXPECT_TRUE(copied);
  EXPECT_EQ(received, kMads);
}

TEST_F(SoftDataPathTest, MadsReachTheSendersOwnHost) {
  SoftHost host({"127.0.0.2"}, TestPort());
  const IpAddress self = IpAddress::FromV4(127, 0, 0, 2);
  ASSERT_TRUE(host.mads->SendMad({self, self}, SomeMad()));
  ReceivedMad mad;
  EXPECT_TRUE(TurnUntil({&host}, [&] { return host.mads->Receive(&mad); }));
}

TEST_F(SoftDataPathTest, SleepsOnOneDescriptorForAllPorts) {
  SoftHost host({"127.0.0.2", "127.0.0.4", "127.0.0.5"}, TestPort());
  SoftHost peer({"127.0.0.3"}, TestPort());
  ASSERT_EQ(host.path->PollFds().size(), 1u);
  while (host.Turn() != 0) {
  }
  pollfd entry = {host.path->PollFds()[0], POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  ASSERT_TRUE(peer.mads->SendMad({IpAddress::FromV4(127, 0, 0, 3), IpAddress::FromV4(127, 0, 0, 5)},
                                 SomeMad()));
  EXPECT_EQ(::poll(&entry, 1, 1000), 1);
  ReceivedMad mad;
  EXPECT_TRUE(TurnUntil({&host}, [&] { return host.mads->Receive(&mad); }));
  EXPECT_EQ(mad.flow.local, IpAddress::FromV4(127, 0, 0, 5));
  TurnUntil({&host},
            [&] { return host.path->NextDeadline(testing::MonotonicNow()) == device::kNever; });
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
}

TEST_F(SoftDataPathTest, IdleAsksForNoTurn) {
  SoftHost host({"127.0.0.2", "127.0.0.4"}, TestPort());
  while (host.Turn() != 0) {
  }
  EXPECT_EQ(host.path->NextDeadline(testing::MonotonicNow()), device::kNever);
}

TEST_F(SoftDataPathTest, ReceivesOnEveryPortWhileOneIsBusy) {
  SoftHost host({"127.0.0.2", "127.0.0.4"}, TestPort());
  SoftHost peer({"127.0.0.3"}, TestPort());
  const IpAddress from = IpAddress::FromV4(127, 0, 0, 3);
  bool quiet_seen = false;
  ASSERT_TRUE(peer.mads->SendMad({from, IpAddress::FromV4(127, 0, 0, 4)}, SomeMad()));
  for (int turn = 0; turn < 100 && !quiet_seen; ++turn) {
    peer.mads->SendMad({from, IpAddress::FromV4(127, 0, 0, 2)}, SomeMad());
    host.Turn();
    ReceivedMad mad;
    while (host.mads->Receive(&mad))
      quiet_seen |= mad.flow.local == IpAddress::FromV4(127, 0, 0, 4);
  }
  EXPECT_TRUE(quiet_seen);
}

TEST_F(SoftDataPathTest, RemovedPortIsNeverAskedAgain) {
  SoftHost host({"127.0.0.2", "127.0.0.4"}, TestPort());
  SoftHost peer({"127.0.0.3"}, TestPort());
  device::EngineObject* port = host.devices->ports()[1].object;
  port->Deactivate(testing::MonotonicNow());
  peer.mads->SendMad({IpAddress::FromV4(127, 0, 0, 3), IpAddress::FromV4(127, 0, 0, 4)}, SomeMad());
  for (int i = 0; i < 100; ++i) host.Turn();
  ReceivedMad mad;
  EXPECT_FALSE(host.mads->Receive(&mad));
  port->Activate(testing::MonotonicNow());
  EXPECT_TRUE(TurnUntil({&host}, [&] { return host.mads->Receive(&mad); }));
}

// Between two network stacks: other ids, other scopes, and batches that cross a device.
TEST_F(SoftDataPathTest, WritesCrossAVethOnEveryKindOfAddress) {
  rdmad::testing::SecondNetwork network;
  if (!network.ok()) GTEST_SKIP() << "needs a network namespace, ip and veth";
  ASSERT_TRUE(
      rdmad::testing::Run("ip link set left mtu 4200 && ip addr add 192.0.2.1/24 dev left &&"
                          "ip addr add fd00:4791::1/64 dev left nodad &&"
                          "ip addr add fe80::4791:1/64 dev left nodad"));
  network.Enter();
  ASSERT_TRUE(
      rdmad::testing::Run("ip link set right mtu 4200 &&"
                          "ip addr add 192.0.2.2/24 dev right &&"
                          "ip addr add fd00:4791::2/64 dev right nodad &&"
                          "ip addr add fe80::4791:2/64 dev right nodad"));
  SoftHost right({"192.0.2.2", "fd00:4791::2", "fe80::4791:2%right"}, TestPort());
  network.Leave();
  SoftHost left({"192.0.2.1", "fd00:4791::1", "fe80::4791:1%left"}, TestPort());
  ASSERT_EQ(left.device().Gids().size(), 3u);
  ASSERT_EQ(right.device().Gids().size(), 3u);
  for (uint32_t sgid_index = 0; sgid_index < 3; ++sgid_index) {
    SCOPED_TRACE(left.device().Gids()[sgid_index].address.ToString());
    RcEnd a(left, kBufferBytes);
    RcEnd b(right, kBufferBytes);
    RcEnd::Connect(a, b, left.device().QueryPort().active_mtu, sgid_index);
    a.FillRandomly(sgid_index);
    ASSERT_EQ(a.Send(WrOpcode::kRdmaWrite, 0, 1 << 20, &b), PostResult::kOk);
    ASSERT_EQ(a.Send(WrOpcode::kRdmaRead, 2 << 20, 1 << 20, &b), PostResult::kOk);
    ASSERT_TRUE(TurnUntil({&left, &right}, [&] { return a.sends.all.size() == 2; }));
    EXPECT_EQ(a.sends.all[0].status, WcStatus::kSuccess);
    EXPECT_EQ(a.sends.all[1].status, WcStatus::kSuccess);
    EXPECT_TRUE(std::equal(a.buffer.begin(), a.buffer.begin() + (1 << 20), b.buffer.begin()));
    EXPECT_TRUE(
        std::equal(a.buffer.begin(), a.buffer.begin() + (1 << 20), a.buffer.begin() + (2 << 20)));
  }
  EXPECT_EQ(left.device().QueryPort().active_mtu, Mtu::k4096);
  EXPECT_EQ(left.Counter("udp_rx_drop_icrc") + right.Counter("udp_rx_drop_icrc"), 0u);
}

TEST_F(SoftDataPathTest, StrangersAndGarbageHarmNobody) {
  SoftHost left({"127.0.0.2"}, TestPort());
  SoftHost right({"127.0.0.3"}, TestPort());
  RcEnd a(left, kBufferBytes);
  RcEnd b(right, kBufferBytes);
  RcEnd::Connect(a, b, Mtu::k4096);
  a.FillRandomly(9);
  const UniqueFd stranger(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage name;
  const socklen_t name_bytes =
      SocketAddress{IpAddress::FromV4(127, 0, 0, 3), TestPort()}.ToSockaddr(&name);
  std::mt19937 random(11);
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(a.Send(WrOpcode::kRdmaWrite, 0, 100000, &b), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&left, &right}, [&] {
    std::array<uint8_t, 64> bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    ::sendto(stranger.get(), bytes.data(), random() % bytes.size(), 0,
             reinterpret_cast<sockaddr*>(&name), name_bytes);
    return a.sends.all.size() == 20;
  }));
  for (const device::Wc& wc : a.sends.all) EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_TRUE(std::equal(a.buffer.begin(), a.buffer.begin() + 100000, b.buffer.begin()));
}

}  // namespace
}  // namespace rdmad::soft
