// A soft device on several engines, over real sockets: QPs of one host on different ones, packets
// that come in at the wrong one, and engines in threads of their own.
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "daemon/device/device.h"
#include "daemon/device/soft/qpn_allocator.h"
#include "gtest/gtest.h"
#include "tests/device/soft/soft_host.h"
#include "tests/device/soft/test_net.h"
#include "tests/device/soft/ud_host.h"

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
using testing::UdEnd;

constexpr size_t kBufferBytes = 1 << 20;
constexpr uint32_t kMessageBytes = 300'000;

class EnginesTest : public ::testing::TestWithParam<const char*> {
 protected:
  EnginesTest() { rdmad::testing::HavePrivateNetwork(); }

  // WRITEs, a READ and a SEND from `a` to `b`, which arrive as they are.
  static void Exchange(RcEnd& a, RcEnd& b, const std::function<bool(std::function<bool()>)>& turn) {
    a.FillRandomly(1);
    ASSERT_EQ(b.Recv(500'000, 1000), PostResult::kOk);
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(a.Send(WrOpcode::kRdmaWrite, 0, kMessageBytes, &b), PostResult::kOk);
    }
    ASSERT_EQ(a.Send(WrOpcode::kRdmaRead, 600'000, kMessageBytes, &b), PostResult::kOk);
    ASSERT_EQ(a.Send(WrOpcode::kSend, 0, 1000), PostResult::kOk);
    ASSERT_TRUE(turn([&] { return a.sends.all.size() == 6 && b.receives.all.size() == 1; }))
        << a.sends.all.size() << " of 6";
    for (const device::Wc& wc : a.sends.all) EXPECT_EQ(wc.status, WcStatus::kSuccess);
    const auto begin = a.buffer.begin();
    EXPECT_TRUE(std::equal(begin, begin + kMessageBytes, b.buffer.begin()));
    EXPECT_TRUE(std::equal(begin, begin + kMessageBytes, begin + 600'000));
    EXPECT_TRUE(std::equal(begin, begin + 1000, b.buffer.begin() + 500'000));
  }
};

INSTANTIATE_TEST_SUITE_P(, EnginesTest, ::testing::Values("127.0.0.2", "::1"),
                         [](const auto& param) {
                           return std::string(param.param) == "::1" ? "Ipv6" : "Ipv4";
                         });

TEST_P(EnginesTest, QpsOfOneHostOnTwoEnginesTalkOverTheSocket) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 4});
  RcEnd a(host, kBufferBytes, 0, 1);
  RcEnd b(host, kBufferBytes, 0, 3);
  ASSERT_EQ(a.qp->qpn() % QpnAllocator::kEngines, 1u);
  ASSERT_EQ(b.qp->qpn() % QpnAllocator::kEngines, 3u);
  RcEnd::Connect(a, b, Mtu::k4096);
  Exchange(a, b, [&](auto done) { return TurnUntil({&host}, done); });
  EXPECT_FALSE(a.qp->same_daemon());
  EXPECT_EQ(host.SharedCounter("local_messages"), 0u);
  EXPECT_GT(host.SharedCounter("rx_packets"), 0u);
  EXPECT_EQ(host.SharedCounter("rx_handed_on"), 0u) << "each came in where its QP is";
  EXPECT_EQ(host.SharedCounter("drop_unknown_qp"), 0u);
}

TEST_P(EnginesTest, QpsOfOneEngineKeepTheLocalPath) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 2});
  RcEnd a(host, kBufferBytes, 0, 1);
  RcEnd b(host, kBufferBytes, 0, 1);
  RcEnd::Connect(a, b, Mtu::k4096);
  Exchange(a, b, [&](auto done) { return TurnUntil({&host}, done); });
  EXPECT_TRUE(a.qp->same_daemon());
  EXPECT_EQ(host.SharedCounter("rx_packets"), 0u);
}

// The kernel puts what one peer sends into one socket, so one of the two QPs gets nothing but what
// was handed on.
TEST_P(EnginesTest, WhatComesInAtTheWrongEngineIsHandedOn) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 2, .steer = false});
  RcEnd a(host, kBufferBytes, 0, 0);
  RcEnd b(host, kBufferBytes, 0, 1);
  RcEnd::Connect(a, b, Mtu::k4096);
  Exchange(a, b, [&](auto done) { return TurnUntil({&host}, done); });
  EXPECT_GT(host.SharedCounter("rx_handed_on"), 0u);
  EXPECT_EQ(host.SharedCounter("drop_unknown_qp"), 0u);
}

TEST_P(EnginesTest, APacketForNobodyIsCountedOnceWhereItsEngineIs) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 2, .steer = false});
  RcEnd a(host, kBufferBytes, 0, 0);
  {
    RcEnd b(host, kBufferBytes, 0, 1);
    RcEnd::Connect(a, b, Mtu::k1024);
  }
  ASSERT_EQ(a.Send(WrOpcode::kRdmaWrite, 0, 100), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&host}, [&] { return host.SharedCounter("drop_unknown_qp") >= 1; }));
  EXPECT_EQ(host.SharedCounter("rx_packets"), host.SharedCounter("drop_unknown_qp"));
}

TEST_P(EnginesTest, DatagramsGoFromEngineToEngine) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 2});
  UdEnd a(host, testing::kUdQkey, 0);
  UdEnd b(host, testing::kUdQkey, 1);
  ASSERT_EQ(a.Send(GetParam(), b.qp->qpn(), "over"), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&host}, [&] { return b.receives.all.size() == 1; }));
  EXPECT_EQ(b.Text(0), "over");
  ASSERT_EQ(b.Send(GetParam(), a.qp->qpn(), "and back"), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&host}, [&] { return a.receives.all.size() == 1; }));
  EXPECT_EQ(a.Text(0), "and back");
}

TEST_P(EnginesTest, AMadReachesControlWhicheverEngineGetsIt) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 3});
  const IpAddress self = *IpAddress::Parse(GetParam());
  std::array<uint8_t, kMadBytes> sent{};
  sent[0] = 17;
  ASSERT_TRUE(host.mads->SendMad({self, self}, sent));
  ReceivedMad mad;
  ASSERT_TRUE(TurnUntil({&host}, [&] { return host.mads->Receive(&mad); }));
  EXPECT_EQ(mad.mad, sent);
}

TEST_P(EnginesTest, ASleepingEngineWakesForWhatIsHandedToIt) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 2, .steer = false});
  UdEnd ends[] = {UdEnd(host, testing::kUdQkey, 0), UdEnd(host, testing::kUdQkey, 1)};
  // Find out whose socket the kernel has chosen for this flow.
  ASSERT_EQ(ends[0].Send(GetParam(), ends[1].qp->qpn(), "which"), PostResult::kOk);
  ASSERT_TRUE(TurnUntil({&host}, [&] { return ends[1].receives.all.size() == 1; }));
  const uint32_t gets = host.SharedCounter("rx_handed_on") == 1 ? 0 : 1;
  UdEnd& awake = ends[gets];
  UdEnd& sleeper = ends[1 - gets];
  while (host.Turn() != 0) {
  }
  SoftDataPath& path = *host.paths[1 - gets];
  ASSERT_EQ(path.NextDeadline(testing::MonotonicNow()), device::kNever);
  pollfd entry = {path.PollFds()[0], POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, 0), 0);
  // From the one that is awake, so that the sleeper's own socket has no part in it.
  ASSERT_EQ(awake.Send(GetParam(), sleeper.qp->qpn(), "wake up"), PostResult::kOk);
  const size_t before = sleeper.receives.all.size();
  for (int i = 0; i < 1000 && ::poll(&entry, 1, 1) == 0; ++i) {
    host.paths[gets]->DoWork(testing::MonotonicNow());
  }
  ASSERT_EQ(::poll(&entry, 1, 0), 1);
  while (path.DoWork(testing::MonotonicNow()) != 0) {
  }
  EXPECT_EQ(sleeper.receives.all.size(), before + 1);
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "still ringing";
}

// Each engine in a thread of its own, and half of all packets at the wrong one. (Thread sanitizer's
// test.)
TEST_P(EnginesTest, EnginesInThreadsShareNothingElse) {
  SoftHost host({GetParam()}, TestPort(), {.engines = 2, .steer = false, .one_thread = false});
  RcEnd a(host, kBufferBytes, 0, 0);
  RcEnd b(host, kBufferBytes, 0, 1);
  RcEnd::Connect(a, b, Mtu::k4096);
  a.FillRandomly(5);
  std::atomic<bool> stop{false};
  std::thread peer([&] {
    host.ActivatePorts(1);
    while (!stop.load(std::memory_order_acquire)) {
      host.paths[1]->DoWork(testing::MonotonicNow());
    }
    host.DeactivatePorts(1);
  });
  host.ActivatePorts(0);
  const device::TimeNs deadline = testing::MonotonicNow() + 20'000'000'000;
  size_t posted = 0;
  while (a.sends.all.size() < 40 && testing::MonotonicNow() < deadline) {
    if (posted < 40 && posted - a.sends.all.size() < 4) {
      posted += a.Send(WrOpcode::kRdmaWrite, 0, 50'000, &b) == PostResult::kOk ? 1 : 0;
    }
    host.paths[0]->DoWork(testing::MonotonicNow());
  }
  stop.store(true, std::memory_order_release);
  peer.join();
  host.DeactivatePorts(0);
  ASSERT_EQ(a.sends.all.size(), 40u);
  for (const device::Wc& wc : a.sends.all) EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_TRUE(std::equal(a.buffer.begin(), a.buffer.begin() + 50'000, b.buffer.begin()));
}

}  // namespace
}  // namespace rdmad::soft
