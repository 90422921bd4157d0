// Who gets what among the sockets that share an address, and that nobody else does.
#include "daemon/device/soft/udp_port_group.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/socket_address.h"
#include "daemon/base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/device/soft/test_net.h"

namespace rdmad::soft {
namespace {

using rdmad::testing::TestPort;

struct Sharing {
  const char* name;
  IpAddress address;
  uint32_t engines;
};

class UdpPortGroupTest : public ::testing::TestWithParam<Sharing> {
 protected:
  UdpPortGroupTest() { rdmad::testing::HavePrivateNetwork(); }

  static absl::StatusOr<std::unique_ptr<UdpPortGroup>> Open(uint32_t engines = GetParam().engines) {
    return UdpPortGroup::Open(GetParam().address, TestPort(), {}, engines);
  }
  static sockaddr_storage Address(uint16_t port, socklen_t* bytes) {
    sockaddr_storage address;
    *bytes = SocketAddress{GetParam().address, port}.ToSockaddr(&address);
    return address;
  }
  // Any UDP program's socket.
  static UniqueFd Foreign() {
    return UniqueFd(::socket(GetParam().address.is_v4() ? AF_INET : AF_INET6,
                             SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  static void SendTo(int fd, const std::vector<uint8_t>& bytes) {
    socklen_t size;
    const sockaddr_storage to = Address(TestPort(), &size);
    ASSERT_EQ(::sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                       size),
              static_cast<ssize_t>(bytes.size()));
  }
  // Whose socket gets something; takes it.
  static std::vector<uint32_t> WhoGot(const UdpPortGroup& group) {
    std::vector<pollfd> sockets;
    for (uint32_t engine = 0; engine < group.size(); ++engine) {
      sockets.push_back({group.port(engine).fd(), POLLIN, 0});
    }
    ::poll(sockets.data(), sockets.size(), 5000);
    std::vector<uint32_t> engines;
    std::vector<uint8_t> bytes(2048);
    for (uint32_t engine = 0; engine < group.size(); ++engine) {
      while (::recv(group.port(engine).fd(), bytes.data(), bytes.size(), MSG_DONTWAIT) >= 0) {
        engines.push_back(engine);
      }
    }
    return engines;
  }
};

INSTANTIATE_TEST_SUITE_P(
    , UdpPortGroupTest,
    ::testing::Values(Sharing{"Ipv4Two", IpAddress::FromV4(127, 0, 0, 2), 2},
                      Sharing{"Ipv4Three", IpAddress::FromV4(127, 0, 0, 2), 3},
                      Sharing{"Ipv4Sixteen", IpAddress::FromV4(127, 0, 0, 2), 16},
                      Sharing{"Ipv6Two", *IpAddress::Parse("::1"), 2},
                      Sharing{"Ipv6Four", *IpAddress::Parse("::1"), 4},
                      Sharing{"Ipv6Sixteen", *IpAddress::Parse("::1"), 16}),
    [](const auto& param) { return param.param.name; });

TEST_P(UdpPortGroupTest, ADatagramGoesWhereItsQpnPoints) {
  const auto group = Open().value();
  ASSERT_EQ(group->size(), GetParam().engines);
  const UniqueFd stranger = Foreign();
  // From anybody, and from the ports themselves.
  for (const int from : {stranger.get(), group->port(0).fd(), group->port(1).fd()}) {
    for (uint32_t low = 0; low < 32; ++low) {
      std::vector<uint8_t> packet(16);
      packet[5] = packet[6] = 0x5a;
      packet[7] = static_cast<uint8_t>(low);
      SendTo(from, packet);
      EXPECT_EQ(WhoGot(*group), std::vector<uint32_t>({low % 16 % GetParam().engines})) << low;
    }
  }
}

TEST_P(UdpPortGroupTest, WhatIsTooShortGoesToTheFirst) {
  const auto group = Open().value();
  const UniqueFd stranger = Foreign();
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    SendTo(stranger.get(), std::vector<uint8_t>(bytes, 0xff));
    EXPECT_EQ(WhoGot(*group), std::vector<uint32_t>({0})) << bytes;
  }
}

TEST_P(UdpPortGroupTest, ASecondDaemonIsRefusedAndToldWhatToDo) {
  const auto group = Open().value();
  for (const uint32_t engines : {1u, 2u, GetParam().engines}) {
    const auto second = Open(engines);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << engines;
    EXPECT_NE(second.status().message().find("ss -aunp"), absl::string_view::npos);
  }
}

TEST_P(UdpPortGroupTest, AForeignSocketCannotShareTheAddress) {
  const auto group = Open().value();
  socklen_t size;
  const sockaddr_storage address = Address(TestPort(), &size);
  for (const bool wants_to_share : {false, true}) {
    const UniqueFd foreign = Foreign();
    const int on = wants_to_share ? 1 : 0;
    ASSERT_EQ(::setsockopt(foreign.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)), 0);
    ASSERT_EQ(::setsockopt(foreign.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    EXPECT_EQ(::bind(foreign.get(), reinterpret_cast<const sockaddr*>(&address), size), -1);
    EXPECT_EQ(errno, EADDRINUSE);
  }
}

TEST_P(UdpPortGroupTest, DoesNotSqueezeInBesideAForeignSocket) {
  socklen_t size;
  const sockaddr_storage address = Address(TestPort(), &size);
  for (const int shares : {0, 1}) {
    const UniqueFd foreign = Foreign();
    ASSERT_EQ(::setsockopt(foreign.get(), SOL_SOCKET, SO_REUSEPORT, &shares, sizeof(shares)), 0);
    ASSERT_EQ(::bind(foreign.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(Open().status().code(), absl::StatusCode::kAlreadyExists) << shares;
  }
  EXPECT_TRUE(Open().ok());
}

TEST_P(UdpPortGroupTest, ComesBackAfterItWasClosed) {
  for (int round = 0; round < 3; ++round) {
    const auto group = Open();
    ASSERT_TRUE(group.ok()) << group.status();
  }
  EXPECT_TRUE(Open(1).ok());
}

}  // namespace
}  // namespace rdmad::soft
