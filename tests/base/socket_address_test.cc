#include "daemon/base/socket_address.h"

#include <netinet/in.h>

#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace rdmad {
namespace {

TEST(SocketAddress, ParsesAndFormats) {
  const struct {
    const char* text;
    const char* ip;
    uint16_t port;
  } kCases[] = {
      {"10.77.0.1:7174", "10.77.0.1", 7174},
      {"0.0.0.0:0", "0.0.0.0", 0},
      {"[::]:65535", "::", 65535},
      {"[fe80::1%3]:18515", "fe80::1%3", 18515},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(c.text);
    ASSERT_TRUE(address.ok()) << address.status().ToString();
    EXPECT_EQ(address->ip.ToString(), c.ip);
    EXPECT_EQ(address->port, c.port);
    EXPECT_EQ(address->ToString(), c.text);
  }
}

TEST(SocketAddress, RefusesWhatIsNoSocketAddress) {
  for (const char* text : {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1",
                           "10.0.0.1:+1", "10.0.0.1:80 ", "::1:80", "[10.0.0.1]:80", "[::1]",
                           "[::1]80", "[]:80", "[:80", "]:80", "host:80", ":80"}) {
    EXPECT_EQ(SocketAddress::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(SocketAddress, SockaddrRoundTrip) {
  for (const char* text : {"10.77.0.1:7174", "[fd77::1]:4791", "[fe80::1%3]:1", "0.0.0.0:0"}) {
    const SocketAddress address = SocketAddress::Parse(text).value();
    sockaddr_storage storage;
    const socklen_t bytes = address.ToSockaddr(&storage);
    EXPECT_EQ(bytes, address.ip.is_v4() ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    EXPECT_EQ(SocketAddress::FromSockaddr(&storage, bytes), address) << text;
    EXPECT_EQ(SocketAddress::FromSockaddr(&storage, bytes - 1), std::nullopt) << text;
  }
}

TEST(SocketAddress, V4LiesInSockaddrInNetworkOrder) {
  sockaddr_storage storage;
  ASSERT_EQ(SocketAddress::Parse("10.77.0.1:7174")->ToSockaddr(&storage), sizeof(sockaddr_in));
  sockaddr_in in;
  std::memcpy(&in, &storage, sizeof(in));
  EXPECT_EQ(in.sin_family, AF_INET);
  EXPECT_EQ(in.sin_port, htons(7174));
  EXPECT_EQ(in.sin_addr.s_addr, htonl(0x0a4d0001));
}

TEST(SocketAddress, DualStackFormIsTheSameAddress) {
  const SocketAddress address = SocketAddress::Parse("10.77.0.1:7174").value();
  sockaddr_storage storage;
  const socklen_t bytes = address.ToSockaddrV6(&storage);
  ASSERT_EQ(bytes, sizeof(sockaddr_in6));
  EXPECT_EQ(storage.ss_family, AF_INET6);
  EXPECT_EQ(SocketAddress::FromSockaddr(&storage, bytes), address);
}

TEST(SocketAddress, OtherFamiliesAreNone) {
  sockaddr_storage storage{};
  storage.ss_family = AF_UNIX;
  EXPECT_EQ(SocketAddress::FromSockaddr(&storage, sizeof(storage)), std::nullopt);
  EXPECT_EQ(SocketAddress::FromSockaddr(nullptr, 16), std::nullopt);
  EXPECT_EQ(SocketAddress::FromSockaddr(&storage, 1), std::nullopt);
}

}  // namespace
}  // namespace rdmad
