#include "rdmad/address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

namespace rdmad {
namespace {

TEST(Address, TextThatParsesPrintsAsItself) {
  for (const char* text : {"192.0.2.1:7471", "0.0.0.0:0", "[2001:db8::1]:80", "[::]:65535", "[::1]:1"}) {
    const absl::StatusOr<Address> address = Address::Parse(text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
}

TEST(Address, ShortForms) {
  EXPECT_EQ(Address::Parse(":80")->ToString(), "0.0.0.0:80");
  EXPECT_EQ(Address::Parse("10.0.0.1")->ToString(), "10.0.0.1:0");
  EXPECT_EQ(Address::Parse("2001:db8::7")->ToString(), "[2001:db8::7]:0");
  EXPECT_EQ(Address::Parse("[::1]")->ToString(), "[::1]:0");
}

TEST(Address, ScopeOfALinkLocalAddressIsKept) {
  const absl::StatusOr<Address> address = Address::Parse("[fe80::1%lo]:9");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_NE(address->scope_id, 0u);
  EXPECT_EQ(address->ToString(), "[fe80::1%lo]:9");
}

TEST(Address, WhatIsWrongIsNamed) {
  for (const char* text : {"", "host:80", "1.2.3:80", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "1.2.3.4:-1",
                           "1.2.3.4:+1", "[::1", "[::1]x", "[::1]:", "::1]:80", "[fe80::1%nosuchif]:1"}) {
    const absl::StatusOr<Address> address = Address::Parse(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(address.status().message()).find(std::string("\"") + text + "\""), std::string::npos);
  }
}

TEST(Address, RoundTripThroughSockaddr) {
  for (const char* text : {"192.0.2.1:7471", "[2001:db8::1]:80", "[fe80::1%lo]:9"}) {
    const Address address = *Address::Parse(text);
    sockaddr_storage storage;
    const socklen_t bytes = address.ToSockaddr(&storage);
    const absl::StatusOr<Address> back = Address::FromSockaddr(reinterpret_cast<sockaddr*>(&storage), bytes);
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, address);
  }
}

TEST(Address, OtherFamiliesAndShortSockaddrsAreRefused) {
  sockaddr_storage storage{};
  storage.ss_family = AF_UNIX;
  const auto* generic = reinterpret_cast<const sockaddr*>(&storage);
  EXPECT_FALSE(Address::FromSockaddr(generic, sizeof(storage)).ok());
  storage.ss_family = AF_INET6;
  EXPECT_FALSE(Address::FromSockaddr(generic, sizeof(sockaddr_in)).ok());
  EXPECT_FALSE(Address::FromSockaddr(nullptr, 128).ok());
}

TEST(Address, NoneHasNoSockaddr) {
  sockaddr_storage storage;
  EXPECT_EQ(Address().ToSockaddr(&storage), 0u);
  EXPECT_EQ(Address().ToString(), "-");
}

}  // namespace
}  // namespace rdmad
