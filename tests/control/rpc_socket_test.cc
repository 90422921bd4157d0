// What may come over rdmad.sock of the running daemon: floods, garbage, too much of everything.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/control/door_bed.h"
#include "tests/control/http2.h"
#include "tests/support/slow.h"

namespace rdmad::testing {
namespace {

using absl::StatusCode;
using RpcSocket = Door;

UniqueFd ConnectRpcSocket(const DaemonProcess& daemon) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (daemon.run_dir() + "/rdmad.sock").c_str(),
               sizeof(address.sun_path) - 1);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

// Sends until everything is sent or the daemon hangs up or takes no more for a moment.
void SendAll(const UniqueFd& socket, const std::string& bytes, size_t times = 1) {
  const timeval limit{0, 20'000};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  for (size_t i = 0; i < times; ++i) {
    if (send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(bytes.size()))
      return;
  }
}

TEST_F(RpcSocket, CallsThatNeverEndTakeLittleMemory) {
  Start();
  const std::string fields = http2::CallFields("/rdmad.v1.SessionService/GetSession") +
                             http2::Field("x-pad", std::string(6000, 'p'));
  std::string calls = http2::Hello();
  for (uint32_t i = 0; i < 100; ++i)
    calls += http2::Frame(http2::kHeaders, http2::kEndHeaders, 2 * i + 1, fields);

  ASSERT_OK_AND_ASSIGN(const ProcessUse before, daemon_->Use());
  std::vector<UniqueFd> connections;
  for (int i = 0; i < 300; ++i) {
    connections.push_back(ConnectRpcSocket(*daemon_));
    SendAll(connections.back(), calls);
  }
  EXPECT_TRUE(Soon([&] { return daemon_->Use()->descriptors < before.descriptors + 64; }));
  if (kMemoryGoesBack) {
    EXPECT_LT(daemon_->Use()->rss_bytes, before.rss_bytes + (uint64_t{16} << 20));
  }
  // Others of the same user have their turn at the latest when those have had theirs.
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  EXPECT_TRUE(Soon([&] { return GetSession(client, client.token()).ok(); }));
}

// What makes HTTP/2 servers fill their memory.
TEST_F(RpcSocket, FloodsCostOnlyTheirSender) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  ASSERT_OK(GetSession(client, client.token()));
  ASSERT_OK_AND_ASSIGN(const ProcessUse before, daemon_->Use());

  const std::string begun = http2::Frame(http2::kHeaders, 0, 1, http2::CallFields("/x"));
  const std::string more =
      http2::Frame(http2::kContinuation, 0, 1, http2::Field("x", std::string(10'000, 'y')));
  const std::string ping = http2::Frame(http2::kPing, 0, 0, std::string(8, 'p'));
  std::string pings;
  for (int i = 0; i < 1000; ++i) pings += ping;
  const std::string settings = http2::Frame(http2::kSettings, 0, 0, "");
  std::vector<UniqueFd> connections;
  for (int i = 0; i < 20; ++i) {
    for (const std::string& flood : {more, pings, settings}) {
      connections.push_back(ConnectRpcSocket(*daemon_));
      SendAll(connections.back(), http2::Hello() + (flood == more ? begun : ""));
      SendAll(connections.back(), flood, 1000);
    }
    EXPECT_OK(GetSession(client, client.token()));
    // Who sends headers without an end is hung up on.
    const UniqueFd& endless = connections[connections.size() - 3];
    EXPECT_TRUE(Soon([&] {
      char bytes[4096];
      const ssize_t count = recv(endless.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      return count == 0 || (count < 0 && errno == ECONNRESET);
    }));
  }
  if (kMemoryGoesBack) {
    EXPECT_LT(daemon_->Use()->rss_bytes, before.rss_bytes + (uint64_t{16} << 20));
  }
}

// As many ranks of one program do that start together.
TEST_F(RpcSocket, FirstCallsOfManySessionsAtOnceAreAllServed) {
  Start();
  constexpr int kSessions = 100;
  std::vector<RawClient> clients;
  for (int i = 0; i < kSessions; ++i) {
    ASSERT_OK_AND_ASSIGN(RawClient client, Attach());
    clients.push_back(std::move(client));
  }
  std::vector<UniqueFd> idle;  // the connections that their calls will come over
  for (int i = 0; i < kSessions; ++i) idle.push_back(ConnectRpcSocket(*daemon_));
  for (const RawClient& client : clients) EXPECT_OK(GetSession(client, client.token()));
  for (const UniqueFd& socket : idle) {
    char bytes[256];
    ssize_t count = 0;
    while ((count = recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) continue;
    EXPECT_NE(count, 0) << "hung up";
  }
}

TEST_F(RpcSocket, ASessionHasFewConnections) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  ASSERT_OK(GetSession(client, client.token()));  // connects
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  absl::Status status;
  while (channels.size() < 20 && status.ok()) {
    channels.push_back(ConnectRpc(daemon_->run_dir()));
    v1::GetSessionReply reply;
    status =
        RawClient::CallAs(client.token(), *v1::SessionService::NewStub(channels.back()),
                          &v1::SessionService::Stub::GetSession, v1::GetSessionRequest(), &reply);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_GT(channels.size(), 2u);
  // Those that were there go on, and a place that came free is one.
  EXPECT_OK(GetSession(client, client.token()));
  channels.clear();
  channels.push_back(ConnectRpc(daemon_->run_dir()));
  EXPECT_TRUE(Soon([&] {
    v1::GetSessionReply reply;
    return RawClient::CallAs(client.token(), *v1::SessionService::NewStub(channels.back()),
                             &v1::SessionService::Stub::GetSession, v1::GetSessionRequest(), &reply)
        .ok();
  }));
}

TEST_F(RpcSocket, AConnectionCountsForTheSessionThatItCalledForLast) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient one, Attach());
  ASSERT_OK_AND_ASSIGN(const RawClient other, Attach());
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  const auto call = [](const std::shared_ptr<grpc::Channel>& channel, const RawClient& client) {
    v1::GetSessionReply reply;
    return RawClient::CallAs(client.token(), *v1::SessionService::NewStub(channel),
                             &v1::SessionService::Stub::GetSession, v1::GetSessionRequest(), &reply);
  };
  absl::Status status;
  while (channels.size() < 20 && status.ok()) {
    channels.push_back(ConnectRpc(daemon_->run_dir()));
    status = call(channels.back(), one);
  }
  ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_OK(call(channels.front(), other));
  EXPECT_OK(call(channels.back(), one)) << "there is a place now";
  EXPECT_EQ(call(channels.front(), one).code(), StatusCode::kResourceExhausted) << "and none here";
  EXPECT_OK(call(channels[1], other));
  // In turns, as often as it likes.
  for (int i = 0; i < 100; ++i) ASSERT_OK(call(channels.front(), i % 2 == 0 ? one : other)) << i;
}

TEST_F(RpcSocket, WhatConnectionsTookGoesBackToTheHost) {
  if (!kMemoryGoesBack) GTEST_SKIP() << "a sanitizer keeps what is freed";
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  ASSERT_OK(GetSession(client, client.token()));
  std::vector<RawClient> sessions;
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK_AND_ASSIGN(RawClient session, Attach());
    sessions.push_back(std::move(session));
  }
  ASSERT_OK_AND_ASSIGN(const ProcessUse before, daemon_->Use());
  const std::string half = http2::Message(std::string(14'000, 'm')).substr(0, 13'000);
  std::vector<UniqueFd> connections;
  for (const RawClient& session : sessions) {
    const std::string fields =
        http2::CallFields("/rdmad.v1.SessionService/GetSession") +
        http2::Field(kTokenKey, absl::Base64Escape(session.token()));
    // One call, so that the connection is the session's, and calls that never end.
    std::string calls = http2::Hello() +
                        http2::Frame(http2::kHeaders, http2::kEndHeaders, 1, fields) +
                        http2::Frame(http2::kData, http2::kEndStream, 1, http2::Message(""));
    std::string endless;
    for (uint32_t stream = 3; stream < 11; stream += 2) {
      endless += http2::Frame(http2::kHeaders, http2::kEndHeaders, stream, fields) +
                 http2::Frame(http2::kData, 0, stream, half);
    }
    for (int i = 0; i < 4; ++i) {
      connections.push_back(ConnectRpcSocket(*daemon_));
      SendAll(connections.back(), calls);
      SendAll(connections.back(), endless);
    }
  }
  constexpr uint64_t kMuch = uint64_t{8} << 20;
  EXPECT_TRUE(Soon([&] { return daemon_->Use()->rss_bytes > before.rss_bytes + kMuch; }));
  connections.clear();
  // Once they are all gone, and what the daemon waits before it tidies up.
  const auto is_back = [&] { return daemon_->Use()->rss_bytes < before.rss_bytes + kMuch / 4; };
  EXPECT_TRUE(Soon(is_back) || Soon(is_back) || Soon(is_back) || Soon(is_back))
      << before.rss_bytes << " before, " << daemon_->Use()->rss_bytes << " now";
}

TEST_F(RpcSocket, GarbageOnTheRpcSocketIsHarmless) {
  Start();
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(5000, '\0')}) {
    const UniqueFd socket = ConnectRpcSocket(*daemon_);
    send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  EXPECT_OK(GetSession(client, client.token()));
}

TEST_F(RpcSocket, OverLongRequestIsRefused) {
  Start();
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  v1::RejectRequest request;
  request.set_private_data(std::string(100'000, 'x'));
  v1::RejectReply reply;
  const absl::Status status =
      client.Call(client.cm(), &v1::CmService::Stub::Reject, request, &reply);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_OK(GetSession(client, client.token()));
}

}  // namespace
}  // namespace rdmad::testing
