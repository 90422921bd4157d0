// Shared receive queues, address handles, memory windows and multicast by the doors of the running
// daemon: what a client of another make sees, and what nonsense it may send.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>
#include <string>

#include "daemon/base/ip_address.h"
#include "tests/control/daemon_bed.h"

namespace rdmad::testing {
namespace {

using absl::StatusCode;
using Verbs = v1::VerbsService::Stub;
using Cm = v1::CmService::Stub;

class Calls : public ::testing::Test {
 protected:
  void SetUp() override {
    daemon_ = std::make_unique<DaemonProcess>(OwnDaemon());
    ASSERT_OK(daemon_->Start());
    ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Attach(daemon_->run_dir(), "calls_test"));
    client_ = std::make_unique<RawClient>(std::move(client));
  }
  template <typename Request, typename Reply>
  absl::Status Call(grpc::Status (Verbs::*method)(grpc::ClientContext*, const Request&, Reply*),
                    const Request& request, Reply* reply) {
    return client_->Call(client_->verbs(), method, request, reply);
  }
  uint64_t MakePd() {
    v1::AllocPdReply reply;
    EXPECT_OK(Call(&Verbs::AllocPd, v1::AllocPdRequest(), &reply));
    return reply.pd();
  }
  v1::ObjectCounts Counts() {
    v1::ListSessionsReply reply;
    EXPECT_OK(client_->Call(client_->admin(), &v1::AdminService::Stub::ListSessions,
                            v1::ListSessionsRequest(), &reply));
    return reply.sessions_size() == 1 ? reply.sessions(0).objects() : v1::ObjectCounts();
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<RawClient> client_;
};

TEST_F(Calls, SharedReceiveQueueLives) {
  v1::CreateSrqRequest create;
  create.set_pd(MakePd());
  create.set_max_wr(16);
  create.set_max_sge(2);
  create.set_limit(4);
  v1::CreateSrqReply made;
  ASSERT_OK(Call(&Verbs::CreateSrq, create, &made));
  EXPECT_GE(made.max_wr(), 16u);
  ASSERT_OK_AND_ASSIGN(const UniqueFd arena, client_->TakeDescriptor(made.ring().descriptor_tag()));
  struct stat info {};
  ASSERT_EQ(fstat(arena.get(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), made.ring().arena_bytes());
  v1::QuerySrqRequest query;
  query.set_srq(made.srq());
  v1::QuerySrqReply asked;
  ASSERT_OK(Call(&Verbs::QuerySrq, query, &asked));
  EXPECT_EQ(asked.limit(), 4u);
  EXPECT_EQ(asked.max_wr(), made.max_wr());
  v1::DestroySrqRequest destroy;
  destroy.set_srq(made.srq());
  v1::DestroySrqReply gone;
  ASSERT_OK(Call(&Verbs::DestroySrq, destroy, &gone));
  EXPECT_EQ(Counts().srqs(), 0u);
}

TEST_F(Calls, AddressHandleLives) {
  ASSERT_OK_AND_ASSIGN(const IpAddress own, IpAddress::Parse(OwnAddress()));
  v1::CreateAhRequest create;
  create.set_pd(MakePd());
  create.mutable_attr()->set_dest_gid(std::string(own.gid().begin(), own.gid().end()));
  create.mutable_attr()->set_hop_limit(64);
  v1::CreateAhReply made;
  ASSERT_OK(Call(&Verbs::CreateAh, create, &made));
  EXPECT_NE(made.slot_handle(), 0u);
  EXPECT_EQ(Counts().ahs(), 1u);
  create.mutable_attr()->set_sgid_index(0x7fffffff);
  EXPECT_EQ(Call(&Verbs::CreateAh, create, &made).code(), StatusCode::kInvalidArgument);
  v1::DestroyAhRequest destroy;
  destroy.set_ah(made.ah());
  v1::DestroyAhReply gone;
  EXPECT_OK(Call(&Verbs::DestroyAh, destroy, &gone));
}

// Numbers that mean something now and then, and mostly nothing.
class Nonsense {
 public:
  explicit Nonsense(uint64_t pd) : pd_(pd) {}
  uint64_t Handle() {
    const uint64_t kinds[] = {0, pd_, pd_ + 1, random_(), random_() % 16 << 24 | uint64_t{1} << 32};
    return kinds[random_() % 5];
  }
  uint32_t Number() {
    const uint32_t values[] = {0,        1,        2,          8,
                               1u << 15, 1u << 31, UINT32_MAX, static_cast<uint32_t>(random_())};
    return values[random_() % 8];
  }
  std::string Bytes() { return std::string(random_() % 20, static_cast<char>(random_())); }

 private:
  const uint64_t pd_;
  std::mt19937_64 random_{20261130};
};

TEST_F(Calls, NonsenseIsRefusedAndLeavesTheDaemonAlone) {
  Nonsense nonsense(MakePd());
  for (int round = 0; round < 200; ++round) {
    v1::CreateSrqRequest srq;
    srq.set_pd(nonsense.Handle());
    srq.set_max_wr(nonsense.Number());
    srq.set_max_sge(nonsense.Number());
    srq.set_limit(nonsense.Number());
    v1::CreateSrqReply srq_reply;
    (void)Call(&Verbs::CreateSrq, srq, &srq_reply);
    v1::ModifySrqRequest limit;
    limit.set_srq(round % 2 == 0 ? srq_reply.srq() : nonsense.Handle());
    limit.set_limit(nonsense.Number());
    v1::ModifySrqReply limit_reply;
    (void)Call(&Verbs::ModifySrq, limit, &limit_reply);
    v1::CreateAhRequest ah;
    ah.set_pd(nonsense.Handle());
    ah.mutable_attr()->set_dest_gid(nonsense.Bytes());
    ah.mutable_attr()->set_sgid_index(nonsense.Number());
    v1::CreateAhReply ah_reply;
    (void)Call(&Verbs::CreateAh, ah, &ah_reply);
    v1::AllocMwRequest mw;
    mw.set_pd(nonsense.Handle());
    mw.set_type(nonsense.Number());
    v1::AllocMwReply mw_reply;
    (void)Call(&Verbs::AllocMw, mw, &mw_reply);
    v1::AttachMulticastRequest attach;
    attach.set_qp(nonsense.Handle());
    attach.set_gid(nonsense.Bytes());
    v1::AttachMulticastReply attach_reply;
    EXPECT_FALSE(Call(&Verbs::AttachMulticast, attach, &attach_reply).ok());
    v1::JoinMulticastRequest join;
    join.set_id(nonsense.Handle());
    join.mutable_group()->set_family(nonsense.Number());
    join.mutable_group()->set_addr(nonsense.Bytes());
    v1::JoinMulticastReply join_reply;
    EXPECT_FALSE(client_->Call(client_->cm(), &Cm::JoinMulticast, join, &join_reply).ok());
  }
  EXPECT_EQ(Counts().pds(), 1u);
  client_->HangUp();
  ASSERT_OK_AND_ASSIGN(const RawClient observer, RawClient::Attach(daemon_->run_dir(), "observer"));
  EXPECT_TRUE(Soon([&] { return SessionsSeenBy(observer) == 1; }));
}

}  // namespace
}  // namespace rdmad::testing
