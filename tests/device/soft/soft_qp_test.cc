// The life of a soft QP: creation, states, posting in each state, flushes, reset, queries.
#include "daemon/device/soft/soft_qp.h"

#include <gtest/gtest.h>

#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

SoftQpInit GoodInit(Bed& bed) {
  SoftQpInit init;
  init.qpn = 0x99;
  init.pd = &bed.a.pd;
  init.init.send_cq = &bed.a.send_cq;
  init.init.recv_cq = &bed.a.recv_cq;
  init.cap = {16, 16, 1, 1, 64};
  init.source = [](uint32_t, SourceAddress*) { return true; };
  return init;
}

TEST(SoftQpCreate, RefusesWhatItCannotDo) {
  Bed bed;
  EXPECT_TRUE(SoftQp::Create(*bed.a.transport, GoodInit(bed)).ok());
  const auto status = [&](auto change) {
    SoftQpInit init = GoodInit(bed);
    change(init);
    return SoftQp::Create(*bed.a.transport, init).status();
  };
  EXPECT_TRUE(absl::IsUnimplemented(
      status([](SoftQpInit& init) { init.init.type = device::QpType::kUd; })));
  const absl::Status too_deep =
      status([](SoftQpInit& init) { init.cap.max_send_wr = kMaxQueueDepth + 1; });
  EXPECT_TRUE(absl::IsInvalidArgument(too_deep));
  EXPECT_EQ(std::string(too_deep.message()), "create_qp: max_send_wr=32769 device_max=32768");
  EXPECT_TRUE(absl::IsInvalidArgument(
      status([](SoftQpInit& init) { init.cap.max_recv_sge = kMaxSge + 1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(
      status([](SoftQpInit& init) { init.cap.max_inline_bytes = kMaxInlineBytes + 1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(status([](SoftQpInit& init) { init.qpn = 1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(status([](SoftQpInit& init) { init.pd = nullptr; })));
}

TEST(SoftQpCreate, QueuesOfNoDepthTakeNothing) {
  Bed bed;
  SoftQpInit init = GoodInit(bed);
  init.cap = {};
  auto qp = SoftQp::Create(*bed.a.transport, init);
  ASSERT_TRUE(qp.ok());
  (*qp)->Activate(0);
  bed.a.qp.swap(*qp);
  bed.ToInit(bed.a);
  EXPECT_EQ(bed.a.qp->PostRecv({}, 0), PostResult::kQueueFull);
  bed.a.qp.swap(*qp);
  (*qp)->Deactivate(0);
}

TEST(SoftQpStates, PostingDependsOnTheState) {
  BedOptions options;
  options.connect = false;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 8);
  const device::SendWr wr = bed.Wr(1, WrOpcode::kSend, &sge);
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kWrongState);
  EXPECT_EQ(bed.PostRecv(bed.a, 1, 0, 8), PostResult::kWrongState);
  bed.ToInit(bed.a);
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kWrongState);
  EXPECT_EQ(bed.PostRecv(bed.a, 1, 0, 8), PostResult::kOk);
  bed.ToRtr(bed.a, bed.b, 5);
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kWrongState);
  EXPECT_EQ(bed.PostRecv(bed.a, 2, 0, 8), PostResult::kOk);
  bed.RtrToRts(bed.a, 7);
  EXPECT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
}

TEST(SoftQpStates, ErrorFlushesSendsThenReceivesInOrderAndGoesOnFlushing) {
  Bed bed;
  bed.network.drop_if = [](const auto&) { return true; };
  const device::Sge sge = bed.a.Sge(0, 5000);
  for (uint64_t i = 1; i <= 3; ++i) {
    device::SendWr wr = bed.Wr(i, WrOpcode::kSend, &sge);
    if (i == 2) wr.flags = 0;  // a flush is reported whether asked for or not
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.a, 10 + i, 0, 8), PostResult::kOk);
  }
  bed.network.Pass(100'000);
  ASSERT_EQ(bed.MoveTo(bed.a, QpState::kErr), QpResult::kOk);
  ASSERT_EQ(bed.a.sends.all.size(), 3u);
  ASSERT_EQ(bed.a.receives.all.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(bed.a.sends.all[i].wr_id, i + 1);
    EXPECT_EQ(bed.a.sends.all[i].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.a.sends.all[i].wqe_count, i + 1);
    EXPECT_EQ(bed.a.receives.all[i].wr_id, 11 + i);
    EXPECT_EQ(bed.a.receives.all[i].status, WcStatus::kWrFlushErr);
  }
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(4, WrOpcode::kRdmaRead, &sge)), PostResult::kOk);
  ASSERT_EQ(bed.PostRecv(bed.a, 14, 0, 8), PostResult::kOk);
  ASSERT_EQ(bed.a.sends.all.size(), 4u);
  EXPECT_EQ(bed.a.sends.all[3].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(bed.a.sends.all[3].wqe_count, 4u);
  ASSERT_EQ(bed.a.receives.all.size(), 4u);
  EXPECT_EQ(bed.a.receives.all[3].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(bed.Counter(bed.a, "completion_errors"), 0u);
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.a.transport->NextDeadline(bed.network.now()), device::kNever);
}

TEST(SoftQpStates, ResetForgetsEverythingAndTheQpCanBeConnectedAgain) {
  for (const Path path : {Path::kWire, Path::kLocal}) {
    BedOptions options;
    options.path = path;
    Bed bed(options);
    const device::Sge sge = bed.a.Sge(0, 200'000);
    ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 100), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
    bed.network.Step();
    ASSERT_EQ(bed.MoveTo(bed.a, QpState::kReset), QpResult::kOk);
    ASSERT_EQ(bed.MoveTo(bed.b, QpState::kReset), QpResult::kOk);
    bed.network.RunUntilQuiet();
    bed.a.sends.all.clear();
    EXPECT_TRUE(bed.b.receives.all.empty());
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kReset);
    EXPECT_EQ(bed.a.qp->Query().dest_qpn, 0u);
    bed.Connect();
    bed.Fill(bed.a, 0, 5000);
    ASSERT_EQ(bed.PostRecv(bed.b, 2, 0, 5000), PostResult::kOk);
    const device::Sge again = bed.a.Sge(0, 5000);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kSend, &again)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, 1));
    EXPECT_EQ(bed.a.sends.all[0].wqe_count, 1u);
    ASSERT_EQ(bed.b.receives.all.size(), 1u);
    EXPECT_EQ(bed.b.receives.all[0].wr_id, 2u) << "the receive from before the reset is gone";
  }
}

TEST(SoftQpStates, DrainFinishesWhatHasBegunAndStartsNothing) {
  BedOptions options;
  options.config.initial_window_bytes = options.config.max_window_bytes = 16 * 1024;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 100'000);
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  }
  bed.network.Step();
  EXPECT_FALSE(bed.a.qp->Query().sq_draining);
  ASSERT_EQ(bed.Drain(bed.a), QpResult::kOk);
  EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), 0u);
  EXPECT_TRUE(bed.a.qp->Query().sq_draining);
  bed.network.RunUntilQuiet();
  EXPECT_EQ(bed.a.sends.all.size(), 1u);
  EXPECT_FALSE(bed.a.qp->Query().sq_draining);
  EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), 1u);
  ASSERT_EQ(bed.MoveTo(bed.a, QpState::kRts), QpResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 3));
  EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), 1u);
}

TEST(SoftQpStates, ADrainIsToldOfOnlyIfThatWasAskedFor) {
  for (const bool value : {false, true}) {
    Bed bed;
    ASSERT_EQ(bed.MoveTo(bed.a, QpState::kSqd), QpResult::kOk);
    bed.network.RunUntilQuiet();
    ASSERT_EQ(bed.MoveTo(bed.a, QpState::kRts), QpResult::kOk);
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrEnSqdAsyncNotify;
    attr.state = QpState::kSqd;
    attr.en_sqd_async_notify = value;
    ASSERT_EQ(bed.a.qp->Modify(attr, bed.network.now()), QpResult::kOk);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), value ? 1u : 0u);
    ASSERT_EQ(bed.MoveTo(bed.a, QpState::kRts), QpResult::kOk);
    ASSERT_EQ(bed.MoveTo(bed.a, QpState::kSqd), QpResult::kOk);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.a.events->Count(AsyncEventType::kSqDrained), value ? 1u : 0u) << "not for good";
  }
}

TEST(SoftQpStates, IllegalModifyChangesNothing) {
  Bed bed;
  const device::QpAttr before = bed.a.qp->Query();
  device::QpAttr attr = bed.RtrAttr(bed.b, 99);
  EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kIllegalTransition);
  attr = {};
  attr.mask = device::kQpAttrMinRnrTimer | device::kQpAttrAccessFlags;
  attr.min_rnr_timer = 40;
  EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kBadValue);
  const device::QpAttr after = bed.a.qp->Query();
  EXPECT_EQ(after.state, before.state);
  EXPECT_EQ(after.rq_psn, before.rq_psn);
  EXPECT_EQ(after.min_rnr_timer, before.min_rnr_timer);
  EXPECT_EQ(after.access_flags, before.access_flags);
}

// A QP in INIT, and what would take it to RTR but for the address.
class SoftQpAddresses : public ::testing::Test {
 protected:
  static BedOptions Options() {
    BedOptions options;
    options.connect = false;
    return options;
  }
  SoftQpAddresses() { bed.ToInit(bed.a); }

  void ExpectBadValue() {
    EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kBadValue);
    EXPECT_EQ(bed.a.qp->Query().state, QpState::kInit);
  }

  Bed bed{Options()};
  device::QpAttr attr = bed.RtrAttr(bed.b, 1);
};

TEST_F(SoftQpAddresses, UnknownGidIndexIsABadValue) {
  attr.av.sgid_index = 5;
  ExpectBadValue();
}

TEST_F(SoftQpAddresses, ALidIsNoAddress) {
  attr.av.dlid = 7;  // as to an HCA on Ethernet, of no account
  attr.av.is_global = false;
  ExpectBadValue();
  attr.av.is_global = true;
  EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kOk);
}

TEST_F(SoftQpAddresses, ADestinationOfTheOtherIpFamilyIsABadValue) {
  attr.av.dest = *IpAddress::Parse("fd00::1");
  ExpectBadValue();
}

// The QP goes on under the address that it had, which therefore stays in use.
TEST(SoftQpStates, ARefusedAddressLeavesTheOldOneInUse) {
  Bed bed;
  SoftQpInit init = GoodInit(bed);
  uint32_t in_use = 99;
  init.source = [&in_use, address = bed.a.address](uint32_t index, SourceAddress* out) {
    in_use = index;
    *out = {.address = address, .max_mtu = index == 3 ? device::Mtu::k4096 : device::Mtu::k256};
    return true;
  };
  auto qp = std::move(SoftQp::Create(*bed.a.transport, init).value());
  qp->Activate(0);
  qp.swap(bed.a.qp);
  bed.ToInit(bed.a);
  device::QpAttr attr = bed.RtrAttr(bed.b, 0);
  attr.av.sgid_index = 3;
  ASSERT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kOk);
  ASSERT_EQ(bed.a.qp->Modify(bed.RtsAttr(0), 0), QpResult::kOk);
  device::QpAttr drain;
  drain.mask = device::kQpAttrState;
  drain.state = QpState::kSqd;
  ASSERT_EQ(bed.a.qp->Modify(drain, 0), QpResult::kOk);
  bed.network.RunUntilQuiet();
  device::QpAttr move;
  move.mask = device::kQpAttrAv;
  move.av = attr.av;
  move.av.sgid_index = 4;
  EXPECT_EQ(bed.a.qp->Modify(move, 0), QpResult::kBadValue);
  EXPECT_EQ(in_use, 3u);
  qp.swap(bed.a.qp);
  qp->Deactivate(0);
}

TEST(SoftQpStates, PathMtuOverTheInterfacesIsABadValue) {
  Bed bed;
  SoftQpInit init = GoodInit(bed);
  init.source = [address = bed.a.address](uint32_t, SourceAddress* out) {
    *out = {.address = address, .max_mtu = device::Mtu::k1024};
    return true;
  };
  auto qp = SoftQp::Create(*bed.a.transport, init);
  ASSERT_TRUE(qp.ok());
  (*qp)->Activate(0);
  bed.a.qp.swap(*qp);
  bed.ToInit(bed.a);
  device::QpAttr attr = bed.RtrAttr(bed.b, 1);
  attr.path_mtu = device::Mtu::k2048;
  EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kBadValue);
  attr.path_mtu = device::Mtu::k1024;
  EXPECT_EQ(bed.a.qp->Modify(attr, 0), QpResult::kOk);
  bed.a.qp.swap(*qp);
  (*qp)->Deactivate(0);
}

TEST(SoftQpStates, QueryTellsWhatWasSetAndWhereThePsnsAre) {
  Bed bed;
  const device::Sge sge = bed.a.Sge(0, 3 * 1024);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  const device::QpAttr a = bed.a.qp->Query();
  EXPECT_EQ(a.state, QpState::kRts);
  EXPECT_EQ(a.current_state, QpState::kRts);
  EXPECT_EQ(a.sq_psn, 0x103u);
  EXPECT_EQ(a.rq_psn, 0xfffffeu);
  EXPECT_EQ(a.dest_qpn, 0x12u);
  EXPECT_EQ(a.path_mtu, device::Mtu::k1024);
  EXPECT_EQ(a.timeout, 14);
  EXPECT_EQ(a.retry_count, 7);
  EXPECT_EQ(a.max_rd_atomic, 4);
  EXPECT_EQ(a.av.dest, bed.b.address);
  EXPECT_EQ(bed.b.qp->Query().rq_psn, 0x103u);
}

TEST(SoftQpStates, InactiveQpsAreOutOfReach) {
  Bed bed;
  const device::Sge sge = bed.a.Sge(0, 1 << 20);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  bed.network.Step();
  bed.a.qp->Deactivate(bed.network.now());
  EXPECT_EQ(bed.MoveTo(bed.a, QpState::kErr), QpResult::kGone);
  EXPECT_EQ(bed.a.transport->NextDeadline(bed.network.now()), device::kNever);
  bed.a.qp.reset();  // a sanitizer would see a packet or timer that still finds it
  bed.network.RunUntilQuiet();
  EXPECT_TRUE(bed.a.sends.all.empty());
  EXPECT_GT(bed.Counter(bed.a, "drop_unknown_qp"), 0u);
}

}  // namespace
}  // namespace rdmad::soft
