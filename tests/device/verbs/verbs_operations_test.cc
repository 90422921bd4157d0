// Shared receive queues, datagrams, memory windows and multicast of the verbs device, against
// FakeIbverbs: what the library is asked for, and what becomes of its answers.
#include <gtest/gtest.h>
#include <net/if.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "daemon/device/verbs/multicast_member.h"
#include "tests/device/verbs/verbs_data_path_testing.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"

namespace rdmad::verbs {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpResult;
using device::QpState;
using device::QpType;
using device::WcStatus;
using device::WrOpcode;

constexpr IpAddress kPeer = IpAddress::FromV4(192, 0, 2, 7);
constexpr IpAddress kGroup = IpAddress::FromV4(239, 77, 0, 1);

// ---- shared receive queues ----

class VerbsSrqTest : public VerbsObjectsTest {
 protected:
  void SetUp() override {
    VerbsObjectsTest::SetUp();
    ASSERT_OK_AND_ASSIGN(srq_,
                         context_->CreateSrq(*pd_, {.max_wr = 3, .max_sge = 2, .owner_token = 7}));
    srq_->Activate(now_);
    MakeQp(QpType::kRc, srq_.get());
  }
  void TearDown() override {
    DropQp();
    srq_->Deactivate(now_);
    srq_.reset();
    VerbsObjectsTest::TearDown();
  }
  PostResult Post(uint64_t id) { return srq_->PostRecv({id, {}}); }
  void PostAndTurn(uint64_t first, uint64_t last) {
    for (uint64_t id = first; id <= last; ++id) ASSERT_EQ(Post(id), PostResult::kOk);
    Turn();
  }
  void Receive(uint64_t number, ibv_wc_status status = IBV_WC_SUCCESS) {
    lib_.Complete(number, status, IBV_WC_RECV, 9);
    lib_.RaiseCompletionEvent();
    Turn();
  }

  std::unique_ptr<device::Srq> srq_;
};

TEST_F(VerbsSrqTest, GrantsWhatTheDriverGrants) {
  EXPECT_EQ(srq_->max_wr(), 4u);
  EXPECT_EQ(srq_->max_sge(), 2u);
  EXPECT_EQ(lib_.qp.srq, &lib_.srq);
  EXPECT_EQ(qp_->cap().max_recv_wr, 0u);
  EXPECT_TRUE(absl::IsInvalidArgument(context_->CreateSrq(*pd_, {.max_wr = 2000}).status()));
}

TEST_F(VerbsSrqTest, WrsCompleteAtTheQpThatTookThemInAnyOrder) {
  MoveToRts();
  PostAndTurn(101, 103);
  EXPECT_EQ(lib_.recv_posts, 1) << "one doorbell";
  Receive(lib_.srq_recvs[2]);
  Receive(lib_.srq_recvs[0]);
  Receive(lib_.srq_recvs[0]);  // nobody's any more
  ASSERT_EQ(sink_.wcs.size(), 2u);
  EXPECT_EQ(sink_.wcs[0].wr_id, 103u);
  EXPECT_EQ(sink_.wcs[0].qpn, qp_->qpn());
  EXPECT_EQ(sink_.wcs[0].byte_len, 9u);
  EXPECT_EQ(sink_.wcs[0].flags, shm::kCqeRecvQueue);
  EXPECT_EQ(sink_.wcs[1].wr_id, 101u);
}

TEST_F(VerbsSrqTest, EntriesAreUsedAgainAlsoAroundOneThatStays) {
  MoveToRts();
  PostAndTurn(1, 1);
  for (uint64_t id = 2; id < 50; ++id) {
    PostAndTurn(id, id);
    Receive(lib_.srq_recvs.back());
    ASSERT_EQ(sink_.Take(), Strings{std::to_string(id) + ":0"});
  }
  Receive(lib_.srq_recvs.front());
  EXPECT_EQ(sink_.Take(), Strings{"1:0"});
}

TEST_F(VerbsSrqTest, WhatAQpThatIsGoneHadTakenIsFreeAgain) {
  MoveToRts();
  PostAndTurn(1, 8);
  EXPECT_EQ(Post(9), PostResult::kQueueFull);
  // Told by the QP's own end, which flushes what it holds.
  lib_.Complete(lib_.srq_recvs[0], IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV);
  DropQp();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  // The client hears of it, too: by that it knows that its place is free.
  EXPECT_EQ(sink_.Take(), Strings{"1:5"});
  EXPECT_EQ(Post(9), PostResult::kOk);
}

TEST_F(VerbsSrqTest, TheLimitIsTheHardwaresAndItsEventDisarmsIt) {
  EXPECT_EQ(srq_->SetLimit(2), QpResult::kOk);
  EXPECT_EQ(lib_.srq_limit, 2u);
  EXPECT_EQ(srq_->limit(), 2u);
  EXPECT_EQ(srq_->SetLimit(5), QpResult::kBadValue);
  EXPECT_EQ(srq_->limit(), 2u);
  lib_.RaiseAsync(IBV_EVENT_SRQ_LIMIT_REACHED);
  Turn();
  ASSERT_EQ(sink_.events.size(), 1u);
  EXPECT_EQ(sink_.events[0].type, AsyncEventType::kSrqLimitReached);
  EXPECT_EQ(sink_.events[0].owner_token, 7u);
  EXPECT_EQ(srq_->limit(), 0u);
  lib_.RaiseAsync(IBV_EVENT_SRQ_ERR);
  Turn();
  EXPECT_EQ(sink_.events.back().type, AsyncEventType::kSrqErr);
}

TEST_F(VerbsSrqTest, PostsAreCheckedAndAQpOnItHasNoReceivesOfItsOwn) {
  MoveToRts();
  EXPECT_EQ(Recv(1), PostResult::kBadOpcode);
  const std::vector<device::Sge> sges(3);
  EXPECT_EQ(srq_->PostRecv({1, sges}), PostResult::kTooManySges);
  EXPECT_TRUE(lib_.recvs.empty() && lib_.srq_recvs.empty());
}

TEST_F(VerbsSrqTest, ADriverThatRefusesAReceiveBreaksTheQueueAndTheAppHears) {
  MoveToRts();
  lib_.recvs_taken = 2;
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_EQ(Post(id), PostResult::kOk);
  Turn();
  ASSERT_EQ(sink_.events.size(), 1u);
  EXPECT_EQ(sink_.events[0].type, AsyncEventType::kSrqErr);
  EXPECT_EQ(sink_.events[0].owner_token, 7u);
  lib_.recvs_taken = UINT32_MAX;
  for (uint64_t id = 5; id < 50; ++id) ASSERT_EQ(Post(id), PostResult::kOk) << "and forgotten";
  Turn();
  ASSERT_EQ(lib_.srq_recvs.size(), 2u);
  EXPECT_EQ(sink_.events.size(), 1u) << "said once";
  Receive(lib_.srq_recvs[1]);
  Receive(lib_.srq_recvs[0]);
  EXPECT_EQ(sink_.Take(), (Strings{"2:0", "1:0"})) << "what it had stays good";
}

TEST_F(VerbsSrqTest, ALimitCountsWhatWasPostedBefore) {
  ASSERT_EQ(Post(1), PostResult::kOk);
  EXPECT_EQ(srq_->SetLimit(1), QpResult::kOk);
  EXPECT_EQ(lib_.srq_recvs.size(), 1u);
}

TEST_F(VerbsSrqTest, ADeadDevicesQueueTakesWrsAndForgetsThem) {
  MoveToRts();
  ASSERT_EQ(Post(1), PostResult::kOk);
  path_->Kill(*open_, now_);
  open_->hardware()->CloseHardware();
  EXPECT_EQ(lib_.open_objects, 0);
  for (uint64_t id = 2; id < 20; ++id) EXPECT_EQ(Post(id), PostResult::kOk);
  EXPECT_EQ(srq_->SetLimit(1), QpResult::kGone);
  EXPECT_TRUE(sink_.Take().empty());
}

// ---- datagrams ----

class VerbsDatagramTest : public VerbsObjectsTest {
 protected:
  void SetUp() override {
    VerbsObjectsTest::SetUp();
    MakeQp(QpType::kUd);
    MoveToRts();
    ASSERT_OK_AND_ASSIGN(ah_, context_->CreateAh(*pd_, {.dest = kPeer, .sgid_index = 3}));
    ASSERT_OK(ah_->Prepare());
    ah_->Activate(now_);
  }
  PostResult SendTo(uint64_t id, const device::Ah* ah, uint8_t flags = shm::kWorkSignaled) {
    device::SendWr wr{};
    wr.wr_id = id;
    wr.flags = flags;
    wr.ah = ah;
    wr.remote_qpn = 0x123;
    wr.remote_qkey = 0x80000000;
    return qp_->PostSend(wr, now_);
  }
  void TearDown() override {
    if (ah_ != nullptr) ah_->Deactivate(now_);
    ah_.reset();
    VerbsObjectsTest::TearDown();
  }

  std::unique_ptr<device::Ah> ah_;
};

TEST_F(VerbsDatagramTest, ASendGoesWhereItsHandleAndItsWrSay) {
  EXPECT_EQ(lib_.qp.qp_type, IBV_QPT_UD);
  ASSERT_EQ(SendTo(1, ah_.get()), PostResult::kOk);
  Turn();
  ASSERT_EQ(lib_.sends.size(), 1u);
  EXPECT_NE(lib_.sends[0].ud.ah, nullptr);
  EXPECT_EQ(lib_.sends[0].ud.remote_qpn, 0x123u);
  EXPECT_EQ(lib_.sends[0].ud.remote_qkey, 0x80000000u);
}

TEST_F(VerbsDatagramTest, AHandleNamesTheDestinationAndTheWayThere) {
  const device::AddressVector av{
      .dest = kPeer, .sgid_index = 4, .traffic_class = 0x20, .hop_limit = 9, .flow_label = 0x12345};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<device::Ah> ah, context_->CreateAh(*pd_, av));
  ASSERT_OK(ah->Prepare());
  EXPECT_EQ(lib_.ah_attr.is_global, 1);
  EXPECT_EQ(lib_.ah_attr.port_num, 1);
  EXPECT_EQ(lib_.ah_attr.grh.sgid_index, 4);
  EXPECT_EQ(lib_.ah_attr.grh.traffic_class, 0x20);
  EXPECT_EQ(lib_.ah_attr.grh.hop_limit, 9);
  EXPECT_EQ(lib_.ah_attr.grh.flow_label, 0x12345u);
  EXPECT_EQ(lib_.ah_attr.grh.dgid.raw[15], 7);
}

TEST_F(VerbsDatagramTest, AHandleThatCannotBeSaysWhy) {
  EXPECT_TRUE(absl::IsInvalidArgument(
      context_->CreateAh(*pd_, {.dest = kPeer, .sgid_index = 256}).status()));
  lib_.create_ah_error = EHOSTUNREACH;
  ASSERT_OK_AND_ASSIGN(const auto ah, context_->CreateAh(*pd_, {.dest = kPeer}));
  const absl::Status refused = ah->Prepare();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("192.0.2.7"), absl::string_view::npos) << refused;
}

TEST_F(VerbsDatagramTest, AHandleGoesAfterTheSendsThatNameIt) {
  ASSERT_EQ(SendTo(1, ah_.get()), PostResult::kOk);
  EXPECT_TRUE(lib_.sends.empty());
  ah_->Deactivate(now_);
  EXPECT_EQ(lib_.sends.size(), 1u);
  ah_.reset();
}

TEST_F(VerbsDatagramTest, ASendWithoutAHandleIsRefusedAndFlushesInTheErrorState) {
  EXPECT_EQ(SendTo(1, nullptr), PostResult::kBadOpcode);
  ASSERT_EQ(SendTo(2, ah_.get()), PostResult::kOk);
  Move(QpState::kErr);
  lib_.Complete(lib_.sends[0].wr_id, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(SendTo(3, nullptr), PostResult::kOk);
  ASSERT_EQ(SendTo(4, ah_.get()), PostResult::kOk);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"2:5:1", "3:5:2", "4:5:3"}));
  EXPECT_EQ(lib_.sends.size(), 1u) << "no mark: it would need an address";
}

// As the engine does it: the QP is moved to the error state, where a send needs no handle.
TEST_F(VerbsDatagramTest, ASendThatIsRefusedWaitsForTheCompletionsOfThoseBeforeIt) {
  ASSERT_EQ(SendTo(1, ah_.get()), PostResult::kOk);
  ASSERT_EQ(SendTo(2, ah_.get()), PostResult::kOk);
  ASSERT_EQ(SendTo(3, ah_.get(), 0), PostResult::kOk);
  Turn();
  Move(QpState::kErr);
  ASSERT_EQ(SendTo(4, nullptr), PostResult::kOk);
  ASSERT_EQ(SendTo(5, ah_.get()), PostResult::kOk);
  Turn();
  EXPECT_TRUE(sink_.Take().empty()) << "the hardware has two that it will tell of";
  lib_.Complete(lib_.sends[0].wr_id);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"1:0:1"});
  lib_.Complete(lib_.sends[1].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"2:5:2", "4:5:4", "5:5:5"}));
  // A driver may flush also what asked for no completion: it has been passed over.
  lib_.Complete(lib_.sends[2].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_TRUE(sink_.Take().empty());
  Move(QpState::kReset);
  MoveToRts();
  ASSERT_EQ(SendTo(6, ah_.get()), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.sends.back().wr_id);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"6:0:1"}) << "as new";
}

TEST_F(VerbsDatagramTest, WhereNotEvenAMarkCanBePostedThoseBeforeItTell) {
  ASSERT_EQ(SendTo(1, ah_.get()), PostResult::kOk);
  Turn();
  ASSERT_EQ(SendTo(2, ah_.get()), PostResult::kOk);
  lib_.sends_taken = lib_.then_taken = 0;
  Turn();
  EXPECT_EQ(lib_.sends.size(), 1u);
  EXPECT_TRUE(sink_.Take().empty());
  lib_.Complete(lib_.sends[0].wr_id);
  Turn();
  EXPECT_EQ(sink_.Take(), (Strings{"1:0:1", "2:2:2"}));
}

TEST_F(VerbsDatagramTest, ASendThatTheDriverRefusesHasItsMarkSentToTheSamePlace) {
  ASSERT_EQ(SendTo(1, ah_.get(), 0), PostResult::kOk);
  ASSERT_EQ(SendTo(2, ah_.get()), PostResult::kOk);
  lib_.sends_taken = 1;
  Turn();
  ASSERT_EQ(lib_.sends.size(), 2u);
  EXPECT_EQ(lib_.sends[1].ud.ah, lib_.sends[0].ud.ah);
  EXPECT_TRUE(sink_.Take().empty());
  lib_.Complete(lib_.sends[1].wr_id, IBV_WC_WR_FLUSH_ERR);
  Turn();
  EXPECT_EQ(sink_.Take(), Strings{"2:2:2"});
}

TEST_F(VerbsDatagramTest, AReceiveTellsWhoSentIt) {
  ASSERT_EQ(Recv(1), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.recvs[0], IBV_WC_SUCCESS, IBV_WC_RECV, 50);
  lib_.completions.back().wc_flags = IBV_WC_GRH;
  lib_.completions.back().src_qp = 0x456;
  lib_.RaiseCompletionEvent();
  Turn();
  ASSERT_EQ(sink_.wcs.size(), 1u);
  EXPECT_EQ(sink_.wcs[0].flags, shm::kCqeRecvQueue | shm::kCqeGrh);
  EXPECT_EQ(sink_.wcs[0].src_qpn, 0x456u);
}

TEST_F(VerbsDatagramTest, OnInfinibandAReceiveTellsTheSendersLid) {
  ASSERT_EQ(Recv(1), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.recvs[0], IBV_WC_SUCCESS, IBV_WC_RECV, 50);
  lib_.completions.back().slid = 0xc001;
  lib_.completions.back().sl = 3;
  lib_.completions.back().dlid_path_bits = 1;
  lib_.RaiseCompletionEvent();
  Turn();
  ASSERT_EQ(sink_.wcs.size(), 1u);
  EXPECT_EQ(sink_.wcs[0].flags, shm::kCqeRecvQueue);
  EXPECT_EQ(sink_.wcs[0].slid, 0xc001);
  EXPECT_EQ(sink_.wcs[0].service_level, 3);
  EXPECT_EQ(sink_.wcs[0].dlid_path_bits, 1);
}

TEST_F(VerbsDatagramTest, AFailedSendLeavesReceivesGoingIfTheHardwareSaysSo) {
  ASSERT_EQ(SendTo(1, ah_.get()), PostResult::kOk);
  Turn();
  lib_.entered = IBV_QPS_SQE;
  lib_.Complete(lib_.sends[0].wr_id, IBV_WC_LOC_PROT_ERR);
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_RTS) << "nobody moved it";
  ASSERT_EQ(Recv(2), PostResult::kOk);
  Turn();
  EXPECT_EQ(lib_.recvs.size(), 1u);
}

TEST_F(VerbsDatagramTest, OnlyUdOperationsAreTaken) {
  device::SendWr wr{};
  wr.ah = ah_.get();
  for (const WrOpcode opcode : {WrOpcode::kSendWithInv, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead,
                                WrOpcode::kFetchAdd, WrOpcode::kLocalInv, WrOpcode::kBindMw}) {
    wr.opcode = opcode;
    EXPECT_EQ(qp_->PostSend(wr, now_), PostResult::kBadOpcode) << static_cast<int>(opcode);
  }
}

TEST_F(VerbsDatagramTest, AGroupIsAttachedWhileTheObjectLives) {
  const int before = lib_.open_objects;
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<device::EngineObject> member,
                       context_->AttachMulticast(*qp_, kGroup));
  EXPECT_EQ(lib_.open_objects, before + 1);
  Gid gid;
  std::copy_n(lib_.attached.raw, gid.size(), gid.begin());
  EXPECT_EQ(IpAddress::FromGid(gid), kGroup);
  member.reset();
  EXPECT_EQ(lib_.open_objects, before);
  EXPECT_TRUE(absl::IsInvalidArgument(context_->AttachMulticast(*qp_, kPeer).status()));
}

TEST(MulticastMember, IsOneWhileTheDescriptorIsOpen) {
  const auto listed = [] {
    return testing::ReadFile("/proc/net/igmp").find("01004DEF") !=
           std::string::npos;  // as the file has it
  };
  {
    ASSERT_OK_AND_ASSIGN(const UniqueFd member, JoinOnInterface(kGroup, ::if_nametoindex("lo")));
    EXPECT_TRUE(listed());
  }
  EXPECT_FALSE(listed());
  EXPECT_TRUE(absl::IsInvalidArgument(JoinOnInterface(kPeer, 1).status()));
}

// ---- memory windows ----

class VerbsWindowTest : public VerbsObjectsTest {
 protected:
  void SetUp() override {
    VerbsObjectsTest::SetUp();
    MakeQp();
    MoveToRts();
    ASSERT_OK_AND_ASSIGN(window_, context_->AllocMw(*pd_));
    window_->Activate(now_);
    ASSERT_OK_AND_ASSIGN(region_, context_->RegisterMr(*pd_, {.host_addr = bytes_.data(),
                                                              .length_bytes = bytes_.size(),
                                                              .access = device::kAccessAll}));
    ASSERT_OK(region_->Prepare());
    region_->Activate(now_);
  }
  void TearDown() override {
    DropRegion();
    window_->Deactivate(now_);
    window_.reset();
    VerbsObjectsTest::TearDown();
  }
  void DropRegion() {
    if (region_ == nullptr) return;
    region_->Deactivate(now_);
    region_.reset();
  }
  PostResult Bind(uint64_t id, uint32_t rkey, uint8_t flags = shm::kWorkSignaled) {
    device::SendWr wr{};
    wr.wr_id = id;
    wr.opcode = WrOpcode::kBindMw;
    wr.flags = flags;
    wr.rkey = rkey;
    wr.bind_lkey = region_->lkey();
    wr.remote_addr = 0x1000;
    wr.compare_add = 64;
    wr.swap = device::kAccessRemoteWrite;
    return qp_->PostSend(wr, now_);
  }
  PostResult Invalidate(uint64_t id, uint32_t rkey) {
    device::SendWr wr{};
    wr.wr_id = id;
    wr.opcode = WrOpcode::kLocalInv;
    wr.flags = shm::kWorkSignaled;
    wr.imm_be = rkey;
    return qp_->PostSend(wr, now_);
  }
  void CompleteLast(ibv_wc_status status = IBV_WC_SUCCESS) {
    Turn();
    lib_.Complete(lib_.sends.back().wr_id, status);
    Turn();
  }

  std::array<std::byte, 4096> bytes_;
  std::unique_ptr<device::Mw> window_;
  std::unique_ptr<device::Mr> region_;
};

TEST_F(VerbsWindowTest, ABindNamesTheLibrarysOwnObjects) {
  const uint32_t key = window_->rkey();
  ASSERT_EQ(Bind(1, key + 1), PostResult::kOk);
  ASSERT_EQ(lib_.sends.size(), 1u);
  const testing::PostedSend& sent = lib_.sends[0];
  EXPECT_EQ(sent.opcode, IBV_WR_BIND_MW);
  EXPECT_EQ(sent.bind.rkey, key + 1);
  EXPECT_EQ(sent.bind_from, key);
  EXPECT_EQ(sent.bind.bind_info.mr->lkey, region_->lkey());
  EXPECT_EQ(sent.bind.bind_info.addr, 0x1000u);
  EXPECT_EQ(sent.bind.bind_info.length, 64u);
  EXPECT_EQ(sent.bind.bind_info.mw_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE});
  EXPECT_EQ(sent.invalidates, 0u) << "drivers want no immediate data here";
  CompleteLast();
  ASSERT_EQ(sink_.wcs.size(), 1u);
  EXPECT_EQ(sink_.wcs[0].opcode, device::WcOpcode::kBindMw);
}

TEST_F(VerbsWindowTest, BindsFollowEachOtherWithoutWaiting) {
  const uint32_t key = window_->rkey();
  ASSERT_EQ(Bind(1, key + 1), PostResult::kOk);
  ASSERT_EQ(Invalidate(2, key + 1), PostResult::kOk);
  ASSERT_EQ(Bind(3, key + 2), PostResult::kOk);
  ASSERT_EQ(lib_.sends.size(), 3u);
  EXPECT_EQ(lib_.sends[1].invalidates, key + 1);
  EXPECT_EQ(lib_.sends[2].bind_from, key + 1);
}

TEST_F(VerbsWindowTest, ABindThatFailsLeavesTheKeyAsItWas) {
  const uint32_t key = window_->rkey();
  ASSERT_EQ(Bind(1, key + 1), PostResult::kOk);
  CompleteLast(IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(sink_.Take(), Strings{"1:6:1"});
  Move(QpState::kReset);
  MoveToRts();
  ASSERT_EQ(Bind(2, key + 3), PostResult::kOk);
  EXPECT_EQ(lib_.sends.back().bind_from, key);
}

TEST_F(VerbsWindowTest, ABindOfWhatIsNotThereFailsInItsPlace) {
  ASSERT_EQ(Send(1, 0), PostResult::kOk);
  ASSERT_EQ(Bind(2, window_->rkey() + 0x100), PostResult::kOk);
  ASSERT_EQ(Send(3), PostResult::kOk);
  ASSERT_EQ(lib_.sends.size(), 1u);
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_RTS) << "the error state would flush the send";
  EXPECT_TRUE(sink_.Take().empty());
  lib_.Complete(lib_.sends[0].wr_id);
  Turn();
  EXPECT_EQ(lib_.moves.back(), IBV_QPS_ERR);
  EXPECT_EQ(sink_.Take(), (Strings{"2:6:2", "3:5:3"}));
}

TEST_F(VerbsWindowTest, ABindToARegionThatIsGoneFails) {
  const uint32_t lkey = region_->lkey();
  DropRegion();
  device::SendWr wr{};
  wr.wr_id = 1;
  wr.opcode = WrOpcode::kBindMw;
  wr.rkey = window_->rkey();
  wr.bind_lkey = lkey;
  wr.compare_add = 64;
  ASSERT_EQ(qp_->PostSend(wr, now_), PostResult::kOk);
  EXPECT_EQ(sink_.Take(), Strings{"1:6:1"});
  EXPECT_TRUE(lib_.sends.empty());
}

TEST_F(VerbsWindowTest, ARegionThatGoesTakesTheWindowsBoundToIt) {
  ASSERT_EQ(Bind(1, window_->rkey(), 0), PostResult::kOk);
  ASSERT_EQ(Send(2), PostResult::kOk);
  CompleteLast();
  EXPECT_EQ(lib_.windows, 1);
  DropRegion();
  EXPECT_EQ(lib_.windows, 0);
}

TEST_F(VerbsWindowTest, AQpThatGoesTakesTheWindowsItMayHaveBound) {
  ASSERT_EQ(Bind(1, window_->rkey()), PostResult::kOk);
  DropQp();
  EXPECT_EQ(lib_.windows, 0);
}

TEST_F(VerbsWindowTest, AWindowThatIsInvalidatedStays) {
  ASSERT_EQ(Bind(1, window_->rkey()), PostResult::kOk);
  ASSERT_EQ(Invalidate(2, window_->rkey()), PostResult::kOk);
  CompleteLast();
  DropRegion();
  DropQp();
  EXPECT_EQ(lib_.windows, 1);
}

TEST_F(VerbsWindowTest, ABindToNothingInvalidates) {
  ASSERT_EQ(Bind(1, window_->rkey() + 1), PostResult::kOk);
  device::SendWr wr{};
  wr.wr_id = 2;
  wr.opcode = WrOpcode::kBindMw;
  wr.flags = shm::kWorkSignaled;
  wr.rkey = window_->rkey() + 2;
  ASSERT_EQ(qp_->PostSend(wr, now_), PostResult::kOk);
  CompleteLast();
  ASSERT_EQ(lib_.sends.size(), 2u);
  EXPECT_EQ(lib_.sends[1].opcode, IBV_WR_LOCAL_INV);
  EXPECT_EQ(lib_.sends[1].invalidates, window_->rkey() + 1);
  ASSERT_EQ(sink_.wcs.size(), 1u);
  EXPECT_EQ(sink_.wcs[0].opcode, device::WcOpcode::kBindMw);
  ASSERT_EQ(Bind(3, window_->rkey() + 3), PostResult::kOk);
  EXPECT_EQ(lib_.sends[2].bind_from, window_->rkey() + 1);
  CompleteLast();
  DropQp();
  EXPECT_EQ(lib_.windows, 0) << "bound again";
}

TEST_F(VerbsWindowTest, AWindowThatThePeerInvalidatesStays) {
  ASSERT_EQ(Bind(1, window_->rkey()), PostResult::kOk);
  CompleteLast();
  sink_.Take();
  ASSERT_EQ(Recv(2), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.recvs[0], IBV_WC_SUCCESS, IBV_WC_RECV);
  lib_.completions.back().wc_flags = IBV_WC_WITH_INV;
  lib_.completions.back().invalidated_rkey = window_->rkey();
  lib_.RaiseCompletionEvent();
  Turn();
  ASSERT_EQ(sink_.wcs.size(), 1u);
  EXPECT_EQ(sink_.wcs[0].flags, shm::kCqeRecvQueue | shm::kCqeWithInv);
  EXPECT_EQ(sink_.wcs[0].imm_be, window_->rkey());
  DropQp();
  EXPECT_EQ(lib_.windows, 1);
}

TEST_F(VerbsWindowTest, RxesBitForAnInvalidationIsUnderstood) {
  ASSERT_EQ(Recv(1), PostResult::kOk);
  Turn();
  lib_.Complete(lib_.recvs[0], IBV_WC_SUCCESS, IBV_WC_RECV);
  lib_.completions.back().wc_flags = IBV_WC_GRH | IBV_WC_IP_CSUM_OK;
  lib_.RaiseCompletionEvent();
  Turn();
  ASSERT_EQ(sink_.wcs.size(), 1u);
  EXPECT_EQ(sink_.wcs[0].flags, shm::kCqeRecvQueue | shm::kCqeWithInv);
}

TEST_F(VerbsWindowTest, AFlushedInvalidationDoesNotCount) {
  ASSERT_EQ(Bind(1, window_->rkey()), PostResult::kOk);
  CompleteLast();
  ASSERT_EQ(Invalidate(2, window_->rkey()), PostResult::kOk);
  CompleteLast(IBV_WC_WR_FLUSH_ERR);
  DropQp();
  EXPECT_EQ(lib_.windows, 0);
}

}  // namespace
}  // namespace rdmad::verbs
