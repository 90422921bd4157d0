// Memory windows: binding, access, invalidation from either side, and all that is refused.
#include <gtest/gtest.h>

#include "daemon/device/soft/soft_mw.h"
#include "proto/shm/completion_queue.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;

constexpr uint32_t kRead = device::kAccessRemoteRead;
constexpr uint32_t kWrite = device::kAccessRemoteWrite;
constexpr uint32_t kAtomic = device::kAccessRemoteAtomic;
constexpr uint64_t kRegionBytes = 4 << 20;

// A window on b's side, for a to use.
class WindowBed : public Bed {
 public:
  explicit WindowBed(const BedOptions& options) : Bed(options) {
    mw = std::move(SoftMw::Create(*b.transport, b.pd).value());
    mw->Activate(0);
  }
  ~WindowBed() {
    if (extra_qp != nullptr) extra_qp->Deactivate(0);
    if (mw != nullptr) mw->Deactivate(0);
  }

  uint32_t Key(uint32_t low_bits) const { return (mw->rkey() & ~0xffu) | low_bits; }
  // A good bind of the window to 8192 bytes at 4096.
  device::SendWr BindWr(uint64_t wr_id, uint32_t low_bits) {
    device::SendWr wr = Wr(wr_id, WrOpcode::kBindMw, nullptr, 4096);
    wr.rkey = Key(low_bits);
    wr.bind_lkey = b.mr->lkey();
    wr.compare_add = 8192;
    wr.swap = kRead | kWrite | kAtomic;
    return wr;
  }
  // Posts on b and returns the status.
  WcStatus Do(const device::SendWr& wr) { return DoOn(b, wr); }
  WcStatus DoOn(Endpoint& endpoint, const device::SendWr& wr) {
    const size_t before = endpoint.sends.all.size();
    EXPECT_EQ(Post(endpoint, wr), PostResult::kOk);
    EXPECT_TRUE(Await(endpoint.sends, before + 1));
    return endpoint.sends.all.size() > before ? endpoint.sends.all[before].status
                                              : WcStatus::kGeneralErr;
  }
  WcStatus Bind(uint32_t low_bits) { return Do(BindWr(900, low_bits)); }
  WcStatus Invalidate(uint32_t key) {
    device::SendWr wr = Wr(901, WrOpcode::kLocalInv, nullptr);
    wr.imm_be = key;
    return Do(wr);
  }
  // a uses `key` at `offset` of b's memory.
  WcStatus Use(WrOpcode opcode, uint32_t key, uint64_t offset = 4096, uint32_t bytes = 8) {
    const device::Sge sge = a.Sge(0, bytes);
    device::SendWr wr = Wr(1, opcode, &sge, offset);
    wr.rkey = key;
    return DoOn(a, wr);
  }
  device::SendWr SendInv(uint64_t wr_id, const device::Sge* sge, uint32_t key) {
    device::SendWr wr = Wr(wr_id, WrOpcode::kSendWithInv, sge);
    wr.imm_be = key;
    return wr;
  }
  // Another QP in b's PD, ready to send. Puts itself in place of b's until called again.
  void SwapOtherQp() {
    if (extra_qp == nullptr) {
      SoftQpInit init;
      init.qpn = 0x99;
      init.pd = &b.pd;
      init.init.send_cq = &b.send_cq;
      init.init.recv_cq = &b.recv_cq;
      init.cap = {4, 4, 1, 1, 0};
      init.source = [address = b.address](uint32_t, SourceAddress* out) {
        out->address = address;
        return true;
      };
      extra_qp = std::move(SoftQp::Create(*b.transport, init).value());
      extra_qp->Activate(0);
      b.qp.swap(extra_qp);
      ToRts(b, a, 0, 0);
      return;
    }
    b.qp.swap(extra_qp);
  }

  std::unique_ptr<SoftMw> mw;
  std::unique_ptr<SoftQp> extra_qp;
};

class RcWindows : public PathTest {
 protected:
  static BedOptions Options() {
    BedOptions options = PathTest::Options();
    options.region_access = device::kAccessAll;
    return options;
  }
};
RDMAD_ON_BOTH_PATHS(RcWindows);

TEST_P(RcWindows, EveryRemoteOperationGoesThroughABoundWindow) {
  WindowBed bed(Options());
  bed.Fill(bed.a, 0, 8192);
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  EXPECT_EQ(bed.b.sends.all[0].opcode, WcOpcode::kBindMw);
  EXPECT_EQ(bed.b.sends.all[0].byte_len, 0u);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(7), 4096, 8192), WcStatus::kSuccess);
  EXPECT_TRUE(bed.Same(0, 4096, 8192));
  bed.Fill(bed.a, 0, 8192, 2);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaRead, bed.Key(7), 4096, 8192), WcStatus::kSuccess);
  EXPECT_TRUE(bed.Same(0, 4096, 8192));
  EXPECT_EQ(bed.Use(WrOpcode::kFetchAdd, bed.Key(7), 4096 + 8184), WcStatus::kSuccess);
  EXPECT_EQ(bed.Use(WrOpcode::kCompareSwap, bed.Key(7)), WcStatus::kSuccess);
}

TEST_P(RcWindows, NothingOutsideTheWindowIsReached) {
  for (const uint64_t offset : {uint64_t{4095}, uint64_t{4096 + 8192 - 7}, uint64_t{0}}) {
    SCOPED_TRACE(offset);
    WindowBed bed(Options());
    ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
    EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(7), offset), WcStatus::kRemAccessErr);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpAccessErr), 1u);
  }
}

TEST_P(RcWindows, TheRightsAreThoseOfTheBind) {
  for (const uint32_t right : {kRead, kWrite, kAtomic}) {
    for (const auto& [opcode, needs] :
         {std::pair{WrOpcode::kRdmaRead, kRead}, std::pair{WrOpcode::kRdmaWrite, kWrite},
          std::pair{WrOpcode::kFetchAdd, kAtomic}}) {
      SCOPED_TRACE(testing::Message() << "right " << right << " needs " << needs);
      WindowBed bed(Options());
      device::SendWr wr = bed.BindWr(1, 7);
      wr.swap = right;
      ASSERT_EQ(bed.Do(wr), WcStatus::kSuccess);
      EXPECT_EQ(bed.Use(opcode, bed.Key(7)),
                right == needs ? WcStatus::kSuccess : WcStatus::kRemAccessErr);
    }
  }
}

TEST_P(RcWindows, AWindowIsNoLocalKey) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  const device::Sge sge{bed.b.Address(4096), 8, bed.Key(7)};
  device::SendWr wr = bed.Wr(1, WrOpcode::kRdmaWrite, &sge);
  wr.rkey = bed.a.mr->rkey();
  EXPECT_EQ(bed.Do(wr), WcStatus::kLocProtErr);
}

// --- Binds that fail ----------------------------------------------------------------------------

struct BindCase {
  const char* name;
  uint32_t region_access;
  void (*change)(WindowBed& bed, device::SendWr& wr);
};
const BindCase kBadBinds[] = {
    {"no such window", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.rkey = 0x7fffff07; }},
    {"key 0", device::kAccessAll, [](WindowBed&, device::SendWr& wr) { wr.rkey = 0; }},
    {"a region for a window", device::kAccessAll,
     [](WindowBed& bed, device::SendWr& wr) { wr.rkey = bed.b.mr->rkey() + 1; }},
    {"the key that it has", device::kAccessAll,
     [](WindowBed& bed, device::SendWr& wr) { wr.rkey = bed.mw->rkey(); }},
    {"no such region", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.bind_lkey ^= 1; }},
    {"a window for a region", device::kAccessAll,
     [](WindowBed& bed, device::SendWr& wr) { wr.bind_lkey = bed.mw->rkey(); }},
    {"region without the right to bind", device::kAccessAll & ~device::kAccessMwBind,
     [](WindowBed&, device::SendWr&) {}},
    {"write without local write", device::kAccessMwBind | kRead,
     [](WindowBed&, device::SendWr& wr) { wr.swap = kWrite; }},
    {"atomic without local write", device::kAccessMwBind | kRead,
     [](WindowBed&, device::SendWr& wr) { wr.swap = kAtomic; }},
    {"a local right", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.swap |= device::kAccessLocalWrite; }},
    {"a right of 64 bits", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.swap |= uint64_t{1} << 32; }},
    {"one byte too long", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.compare_add = kRegionBytes - 4096 + 1; }},
    {"length that wraps", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.compare_add = UINT64_MAX; }},
    {"before the region", device::kAccessAll,
     [](WindowBed&, device::SendWr& wr) { wr.remote_addr = Endpoint::kIova - 1; }},
};

TEST_P(RcWindows, ABadBindFailsWithItsStatusAndEndsTheQp) {
  for (const BindCase& c : kBadBinds) {
    SCOPED_TRACE(c.name);
    BedOptions options = Options();
    options.region_access = c.region_access;
    WindowBed bed(options);
    device::SendWr wr = bed.BindWr(5, 7);
    c.change(bed, wr);
    ASSERT_EQ(bed.Post(bed.b, wr), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.b, bed.BindWr(6, 8)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.b.sends, 2));
    EXPECT_EQ(bed.b.sends.all[0].status, WcStatus::kMwBindErr);
    EXPECT_EQ(bed.b.sends.all[0].opcode, WcOpcode::kBindMw);
    EXPECT_EQ(bed.b.sends.all[1].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
    EXPECT_NE(bed.a.qp->Query().state, QpState::kErr);
  }
}

TEST_P(RcWindows, AReadWindowNeedsNoLocalWrite) {
  BedOptions options = Options();
  options.region_access = device::kAccessMwBind;
  WindowBed bed(options);
  device::SendWr wr = bed.BindWr(1, 7);
  wr.swap = kRead;
  EXPECT_EQ(bed.Do(wr), WcStatus::kSuccess);
}

TEST_P(RcWindows, ABoundWindowIsNotBoundAgain) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  EXPECT_EQ(bed.Bind(8), WcStatus::kMwBindErr);
}

TEST_P(RcWindows, WindowAndRegionMustBeOfTheQpsPd) {
  for (const bool window : {true, false}) {
    SCOPED_TRACE(window);
    WindowBed bed(Options());
    SoftPd other;
    auto mw = std::move(SoftMw::Create(*bed.b.transport, other).value());
    auto mr = std::move(SoftMr::Create(*bed.b.transport, other,
                                       {bed.b.memory.data(), bed.b.memory.size(), Endpoint::kIova,
                                        device::kAccessAll})
                            .value());
    mw->Activate(0);
    mr->Activate(0);
    device::SendWr wr = bed.BindWr(1, 7);
    (window ? wr.rkey : wr.bind_lkey) = window ? mw->rkey() + 1 : mr->lkey();
    EXPECT_EQ(bed.Do(wr), WcStatus::kMwBindErr);
    mw->Deactivate(0);
    mr->Deactivate(0);
  }
}

// --- Invalidation -------------------------------------------------------------------------------

TEST_P(RcWindows, AfterALocalInvalidationTheKeyFailsAndTheWindowCanBeBound) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  ASSERT_EQ(bed.Invalidate(bed.Key(7)), WcStatus::kSuccess);
  EXPECT_EQ(bed.b.sends.all.back().opcode, WcOpcode::kLocalInv);
  ASSERT_EQ(bed.Bind(8), WcStatus::kSuccess);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(8)), WcStatus::kSuccess);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(7)), WcStatus::kRemAccessErr);
}

TEST_P(RcWindows, ABindOfNoBytesFreesTheWindow) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  device::SendWr wr = bed.BindWr(1, 8);
  wr.compare_add = 0;
  ASSERT_EQ(bed.Do(wr), WcStatus::kSuccess);
  ASSERT_EQ(bed.Bind(9), WcStatus::kSuccess);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaRead, bed.Key(9)), WcStatus::kSuccess);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaRead, bed.Key(7)), WcStatus::kRemAccessErr);
}

enum class Target { kUnknown, kRegion, kFreeWindow, kOldKey, kOtherQp };
uint32_t PrepareTarget(WindowBed& bed, Target target) {
  switch (target) {
    case Target::kUnknown:
      return 0x7fffff01;
    case Target::kRegion:
      return bed.b.mr->rkey();
    case Target::kFreeWindow:
      return bed.mw->rkey();
    case Target::kOldKey:
      EXPECT_EQ(bed.Bind(7), WcStatus::kSuccess);
      return bed.Key(6);
    case Target::kOtherQp:
      bed.SwapOtherQp();
      EXPECT_EQ(bed.Bind(7), WcStatus::kSuccess);
      bed.SwapOtherQp();
      return bed.Key(7);
  }
  return 0;
}
constexpr Target kBadTargets[] = {Target::kUnknown, Target::kRegion, Target::kFreeWindow,
                                  Target::kOldKey, Target::kOtherQp};

TEST_P(RcWindows, WhatIsNoWindowOfThisQpCannotBeInvalidatedLocally) {
  for (const Target target : kBadTargets) {
    SCOPED_TRACE(static_cast<int>(target));
    WindowBed bed(Options());
    EXPECT_EQ(bed.Invalidate(PrepareTarget(bed, target)), WcStatus::kLocQpOpErr);
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
  }
}

TEST_P(RcWindows, NorByThePeer) {
  for (const Target target : kBadTargets) {
    SCOPED_TRACE(static_cast<int>(target));
    WindowBed bed(Options());
    const uint32_t key = PrepareTarget(bed, target);
    ASSERT_EQ(bed.PostRecv(bed.b, 50, 0, 64), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.b, 51, 0, 64), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, 8);
    EXPECT_EQ(bed.DoOn(bed.a, bed.SendInv(1, &sge, key)), WcStatus::kRemInvReqErr);
    bed.network.RunUntilQuiet();
    EXPECT_EQ(bed.b.qp->Query().state, QpState::kErr);
    EXPECT_EQ(bed.b.events->Count(AsyncEventType::kQpReqErr), 1u);
    ASSERT_EQ(bed.b.receives.all.size(), 2u);
    EXPECT_EQ(bed.b.receives.all[0].status, WcStatus::kRemInvReqErr);
    EXPECT_EQ(bed.b.receives.all[1].status, WcStatus::kWrFlushErr);
    if (target == Target::kOtherQp) {
      EXPECT_TRUE(bed.b.transport->mrs().MayInvalidate(key, bed.extra_qp->context().key_scope));
    }
  }
}

TEST_P(RcWindows, SendWithInvalidateFreesTheWindowAndTellsTheKey) {
  for (const uint32_t bytes : {0u, 8u, 3000u}) {
    SCOPED_TRACE(bytes);
    WindowBed bed(Options());
    bed.Fill(bed.a, 0, bytes);
    ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
    ASSERT_EQ(bed.PostRecv(bed.b, 50, 0, 4096), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, bytes);
    ASSERT_EQ(bed.DoOn(bed.a, bed.SendInv(1, &sge, bed.Key(7))), WcStatus::kSuccess);
    EXPECT_EQ(bed.a.sends.all[0].opcode, WcOpcode::kSend);
    ASSERT_EQ(bed.b.receives.all.size(), 1u);
    const device::Wc& wc = bed.b.receives.all[0];
    EXPECT_EQ(wc.opcode, WcOpcode::kRecv);
    EXPECT_EQ(wc.flags, shm::kCqeRecvQueue | shm::kCqeWithInv);
    EXPECT_EQ(wc.imm_be, bed.Key(7));
    EXPECT_EQ(wc.byte_len, bytes);
    EXPECT_TRUE(bed.Same(0, 0, bytes));
    if (GetParam() == Path::kWire) {
      const auto ends = bed.network.CountSent([&](const auto& sent) {
        return (sent.fields.opcode == wire::Opcode::kRcSendOnlyInv ||
                sent.fields.opcode == wire::Opcode::kRcSendLastInv) &&
               sent.fields.invalidate_rkey.value() == bed.Key(7);
      });
      EXPECT_EQ(ends, 1u);
    }
    EXPECT_EQ(bed.Bind(8), WcStatus::kSuccess) << "free again";
    EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(7)), WcStatus::kRemAccessErr);
  }
}

// The way of iSER, NVMe-oF and NFS: the peer reads through a window and invalidates it by its last
// SEND. A copy of the READ, by the network or a probe that was not needed, comes along with that.
TEST(RcWindowsWire, ACopyOfAReadBeforeTheSendThatInvalidatesHarmsNobody) {
  BedOptions options;
  options.psn_a = 100;
  options.access = options.region_access = device::kAccessAll;
  WindowBed bed(options);
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 64), PostResult::kOk);
  ASSERT_EQ(bed.Use(WrOpcode::kRdmaRead, bed.Key(7), 4096, 4096), WcStatus::kSuccess);
  wire::PacketFields copy;
  copy.opcode = wire::Opcode::kRcReadRequest;
  copy.psn = wire::Psn(100);
  copy.dest_qpn = wire::Qpn(bed.b.qp->qpn());
  copy.ack_req = true;
  copy.reth = {bed.b.Address(4096), wire::Rkey(bed.Key(7)), 4096};
  bed.network.Inject({.local = bed.a.address, .remote = bed.b.address}, copy);
  const device::Sge word = bed.a.Sge(0, 8);
  EXPECT_EQ(bed.DoOn(bed.a, bed.SendInv(2, &word, bed.Key(7))), WcStatus::kSuccess);
  EXPECT_EQ(bed.b.qp->Query().state, device::QpState::kRts);
}

TEST_P(RcWindows, InvalidationStopsAMessageInTheMiddle) {
  for (const WrOpcode opcode : {WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    BedOptions options = Options();
    options.config.initial_window_bytes = options.config.max_window_bytes = 32 * 1024;
    options.config.qp_budget_bytes = options.config.turn_budget_bytes = 16 * 1024;
    WindowBed bed(options);
    device::SendWr bind = bed.BindWr(1, 7);
    bind.remote_addr = Endpoint::kIova;
    bind.compare_add = 1 << 20;
    ASSERT_EQ(bed.Do(bind), WcStatus::kSuccess);
    const device::Sge sge = bed.a.Sge(0, 1 << 20);
    device::SendWr wr = bed.Wr(1, opcode, &sge);
    wr.rkey = bed.Key(7);
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    for (int i = 0; i < 20; ++i) bed.network.Step();
    ASSERT_TRUE(bed.a.sends.all.empty()) << "too late to revoke";
    ASSERT_EQ(bed.Invalidate(bed.Key(7)), WcStatus::kSuccess);
    ASSERT_TRUE(bed.Await(bed.a.sends, 1));
    EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kRemAccessErr);
  }
}

// --- Lives --------------------------------------------------------------------------------------

TEST_P(RcWindows, AnotherQpOfThePdHasNoUseForTheKey) {
  WindowBed bed(Options());
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, PrepareTarget(bed, Target::kOtherQp)),
            WcStatus::kRemAccessErr);
}

TEST_P(RcWindows, ARegionThatGoesTakesItsWindowsWithIt) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  bed.b.mr->Deactivate(0);
  bed.b.mr->Activate(0);  // the same key: a new region as far as windows are concerned
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(7)), WcStatus::kRemAccessErr);
}

TEST_P(RcWindows, AWindowOfARegionThatIsGoneCanBeInvalidatedAndBoundAnew) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  bed.b.mr->Deactivate(0);
  bed.b.mr->Activate(0);
  ASSERT_EQ(bed.Invalidate(bed.Key(7)), WcStatus::kSuccess);
  ASSERT_EQ(bed.Bind(8), WcStatus::kSuccess);
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, bed.Key(8)), WcStatus::kSuccess);
}

TEST_P(RcWindows, AWindowThatIsDeallocatedIsNothing) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.Bind(7), WcStatus::kSuccess);
  const uint32_t key = bed.Key(7);
  bed.mw->Deactivate(0);
  bed.mw.reset();
  EXPECT_EQ(bed.Use(WrOpcode::kRdmaWrite, key), WcStatus::kRemAccessErr);
}

TEST_P(RcWindows, BindsAndInvalidationsKeepTheirPlaceInTheQueue) {
  BedOptions options = Options();
  options.faults.loss = 0.2;
  options.timeout = 10;
  WindowBed bed(options);
  for (uint64_t i = 0; i < 20; ++i)
    ASSERT_EQ(bed.PostRecv(bed.a, i, 1 << 20, 4096), PostResult::kOk);
  uint64_t wr_id = 0;
  for (uint32_t round = 0; round < 10; ++round) {
    const device::Sge sge = bed.b.Sge(0, 3000);
    ASSERT_EQ(bed.Post(bed.b, bed.Wr(wr_id++, WrOpcode::kSend, &sge)), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.b, bed.BindWr(wr_id++, 10 + round)), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.b, bed.Wr(wr_id++, WrOpcode::kSend, &sge)), PostResult::kOk);
    device::SendWr wr = bed.Wr(wr_id++, WrOpcode::kLocalInv, nullptr);
    wr.imm_be = bed.Key(10 + round);
    ASSERT_EQ(bed.Post(bed.b, wr), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.b.sends, wr_id));
  for (uint64_t i = 0; i < wr_id; ++i) {
    EXPECT_EQ(bed.b.sends.all[i].wr_id, i);
    EXPECT_EQ(bed.b.sends.all[i].status, WcStatus::kSuccess);
    EXPECT_EQ(bed.b.sends.all[i].wqe_count, i + 1);
  }
  EXPECT_EQ(bed.a.receives.all.size(), 20u);
}

TEST_P(RcWindows, ABindWaitsWhileTheQueueDrains) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kSqd), device::QpResult::kOk);
  ASSERT_EQ(bed.Post(bed.b, bed.BindWr(1, 7)), PostResult::kOk);
  bed.network.Pass(1'000'000);
  EXPECT_TRUE(bed.b.sends.all.empty());
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kRts), device::QpResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.sends, 1));
  EXPECT_EQ(bed.b.sends.all[0].status, WcStatus::kSuccess);
}

TEST_P(RcWindows, ABindThatIsFlushedChangesNothing) {
  WindowBed bed(Options());
  ASSERT_EQ(bed.MoveTo(bed.b, QpState::kErr), device::QpResult::kOk);
  EXPECT_EQ(bed.Bind(7), WcStatus::kWrFlushErr);
  bed.SwapOtherQp();
  EXPECT_EQ(bed.Bind(7), WcStatus::kSuccess);
}

}  // namespace
}  // namespace rdmad::soft
