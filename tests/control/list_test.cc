// Lists of the running daemon: they come in pages of bounded size, and what stays is in one of them.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/session/list_budget.h"
#include "tests/control/door_bed.h"

namespace rdmad::testing {
namespace {

using Admin = v1::AdminService::Stub;
using session::ListBudget;

constexpr uint32_t kPortSpaceTcp = 0x0106;
constexpr int kMany = 3 * ListBudget::kMostEntries;

class List : public Door {
 protected:
  void SetUp() override { Start(); }

  static uint64_t MakeChannel(const RawClient& client) {
    v1::CreateEventChannelReply reply;
    EXPECT_OK(client.Call(client.cm(), &v1::CmService::Stub::CreateEventChannel,
                          v1::CreateEventChannelRequest(), &reply));
    return reply.channel();
  }
  static uint64_t MakeId(const RawClient& client, uint64_t channel) {
    v1::CreateIdRequest request;
    request.set_channel(channel);
    request.set_port_space(kPortSpaceTcp);
    v1::CreateIdReply reply;
    EXPECT_OK(client.Call(client.cm(), &v1::CmService::Stub::CreateId, request, &reply));
    return reply.id();
  }
  static void DestroyId(const RawClient& client, uint64_t id) {
    v1::DestroyIdRequest request;
    request.set_id(id);
    v1::DestroyIdReply reply;
    EXPECT_OK(client.Call(client.cm(), &v1::CmService::Stub::DestroyId, request, &reply));
  }
};

using SessionAndId = std::pair<uint64_t, uint64_t>;

TEST_F(List, WhatStaysIsInOnePageWhateverComesAndGoes) {
  ASSERT_OK_AND_ASSIGN(const RawClient observer, Attach("observer"));
  ASSERT_OK_AND_ASSIGN(const RawClient one, Attach("one"));
  ASSERT_OK_AND_ASSIGN(const RawClient two, Attach("two"));
  std::vector<SessionAndId> stay;
  std::vector<uint64_t> go;
  const uint64_t channel = MakeChannel(one);
  for (int i = 0; i < kMany; ++i) {
    const uint64_t id = MakeId(one, channel);
    if (i % 4 == 0) {
      go.push_back(id);
    } else {
      stay.emplace_back(one.reply().session_id(), id);
    }
  }
  const uint64_t other_channel = MakeChannel(two);
  for (int i = 0; i < kMany / 2; ++i)
    stay.emplace_back(two.reply().session_id(), MakeId(two, other_channel));

  std::map<SessionAndId, int> seen;
  v1::ListConnectionsRequest request;
  v1::ListConnectionsReply reply;
  int pages = 0;
  do {
    ASSERT_LT(++pages, 100);
    reply.Clear();
    ASSERT_OK(observer.Call(observer.admin(), &Admin::ListConnections, request, &reply));
    EXPECT_LE(reply.connections_size(), static_cast<int>(ListBudget::kMostEntries));
    for (const v1::ConnectionStatus& id : reply.connections()) ++seen[{id.session_id(), id.id()}];
    request.set_page(reply.next_page());
    for (int i = 0; i < 10 && !go.empty(); ++i) {
      DestroyId(one, go.back());
      go.pop_back();
      MakeId(one, channel);
    }
    if (pages == 2) {
      EXPECT_OK(Attach("passing by").status());
    }
  } while (reply.has_next_page());
  EXPECT_GT(pages, 3);
  for (const SessionAndId& id : stay) EXPECT_EQ(seen[id], 1) << id.first << " " << id.second;
  for (const auto& [id, times] : seen) EXPECT_EQ(times, 1) << id.first << " " << id.second;
}

TEST_F(List, PoolsComeInPagesToo) {
  ASSERT_OK_AND_ASSIGN(RawClient client, Attach());
  for (uint32_t i = 0; i < ListBudget::kMostEntries + 1; ++i) {
    v1::CreatePoolRequest request;
    request.set_size_bytes(4096);
    v1::CreatePoolReply made;
    ASSERT_OK(client.Call(client.memory(), &v1::MemoryService::Stub::CreatePool, request, &made));
    ASSERT_OK(client.TakeDescriptor(made.descriptor_tag()).status());
  }
  v1::ListPoolsReply first;
  ASSERT_OK(client.Call(client.admin(), &Admin::ListPools, v1::ListPoolsRequest(), &first));
  EXPECT_EQ(first.pools_size(), static_cast<int>(ListBudget::kMostEntries));
  ASSERT_TRUE(first.has_next_page());
  v1::ListPoolsRequest request;
  request.set_page(first.next_page());
  v1::ListPoolsReply second;
  ASSERT_OK(client.Call(client.admin(), &Admin::ListPools, request, &second));
  EXPECT_EQ(second.pools_size(), 1);
  EXPECT_FALSE(second.has_next_page());
}

TEST_F(List, APageThatNoReplyHasNamedIsRefused) {
  ASSERT_OK_AND_ASSIGN(const RawClient client, Attach());
  v1::ListSessionsRequest request;
  request.set_page("the second");
  v1::ListSessionsReply reply;
  const absl::Status status =
      client.Call(client.admin(), &Admin::ListSessions, request, &reply);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  request.set_page(std::string(12, '\xff'));  // behind everything
  ASSERT_OK(client.Call(client.admin(), &Admin::ListSessions, request, &reply));
  EXPECT_EQ(reply.sessions_size(), 0);
  EXPECT_FALSE(reply.has_next_page());
}

}  // namespace
}  // namespace rdmad::testing
