#include "daemon/engine/cq_port.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

using device::Wc;
using device::WcStatus;

Wc SendDone(uint64_t wr_id, WcStatus status = WcStatus::kSuccess) {
  Wc wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  return wc;
}

Wc RecvDone(uint64_t wr_id, bool solicited = false) {
  Wc wc{};
  wc.wr_id = wr_id;
  wc.opcode = device::WcOpcode::kRecv;
  wc.flags = shm::kCqeRecvQueue;
  wc.solicited = solicited;
  wc.byte_len = 10;
  return wc;
}

class CqPortTest : public ::testing::Test {
 protected:
  EngineBed bed_;
  TestSession session_{bed_};
  TestChannel channel_{bed_, session_};
};

TEST_F(CqPortTest, EveryFieldArrives) {
  TestCq cq(bed_, session_, 4);
  Wc wc{};
  wc.wr_id = 1;
  wc.status = WcStatus::kRetryExcErr;
  wc.opcode = device::WcOpcode::kRecvRdmaWithImm;
  wc.flags = shm::kCqeWithImm | shm::kCqeRecvQueue;
  wc.byte_len = 2;
  wc.imm_be = 3;
  wc.qpn = 4;
  wc.src_qpn = 5;
  wc.vendor_err = 6;
  wc.wqe_count = 7;
  wc.qp_cookie = 8;
  wc.slid = 9;
  wc.service_level = 10;
  wc.dlid_path_bits = 11;
  cq.port->OnCompletion(wc);
  const std::vector<shm::Cqe> cqes = cq.PollAll();
  ASSERT_EQ(cqes.size(), 1u);
  EXPECT_EQ(cqes[0].wr_id, 1u);
  EXPECT_EQ(cqes[0].status, 12);
  EXPECT_EQ(cqes[0].opcode, 129);
  EXPECT_EQ(cqes[0].flags, shm::kCqeWithImm | shm::kCqeRecvQueue);
  EXPECT_EQ(cqes[0].byte_len, 2u);
  EXPECT_EQ(cqes[0].imm_be, 3u);
  EXPECT_EQ(cqes[0].qpn, 4u);
  EXPECT_EQ(cqes[0].src_qpn, 5u);
  EXPECT_EQ(cqes[0].vendor_err, 6u);
  EXPECT_EQ(cqes[0].wqe_count, 7u);
  EXPECT_EQ(cqes[0].qp_cookie, 8u);
  EXPECT_EQ(cqes[0].slid, 9u);
  EXPECT_EQ(cqes[0].service_level, 10u);
  EXPECT_EQ(cqes[0].dlid_path_bits, 11u);
}

TEST_F(CqPortTest, WrapsManyTimesInOrder) {
  TestCq cq(bed_, session_, 4);
  uint64_t next = 0;
  for (uint64_t id = 0; id < 1000; id += 3) {
    for (uint64_t i = 0; i < 3; ++i) cq.port->OnCompletion(SendDone(id + i));
    for (const uint64_t got : WrIds(cq.PollAll())) EXPECT_EQ(got, next++);
  }
  EXPECT_EQ(next, 1002u);
}

TEST_F(CqPortTest, AFullQueueOverrunsAndKeepsWhatIsThere) {
  TestCq cq(bed_, session_, 4, nullptr, 55);
  for (uint64_t id = 0; id < 6; ++id) cq.port->OnCompletion(SendDone(id));
  EXPECT_EQ(WrIds(cq.PollAll()), (std::vector<uint64_t>{0, 1, 2, 3}));
  bed_.Settle();
  EXPECT_EQ(bed_.sink.overruns, std::vector<uint64_t>{55});
  EXPECT_EQ(session_.port->Counters().completions_dropped, 2u);
  EXPECT_EQ(session_.port->Counters().corrupt_rings, 0u);
}

TEST_F(CqPortTest, AnOverrunCqStaysBroken) {
  TestCq cq(bed_, session_, 4);
  for (uint64_t id = 0; id < 5; ++id) cq.port->OnCompletion(SendDone(id));
  cq.PollAll();
  cq.port->OnCompletion(SendDone(9));
  EXPECT_TRUE(cq.PollAll().empty());
  bed_.Settle();
  EXPECT_EQ(bed_.sink.overruns.size(), 1u) << "said once";
}

TEST_F(CqPortTest, OneThatTheHardwareHasGivenUpIsAsBroken) {
  TestCq cq(bed_, session_, 4, nullptr, 55);
  cq.port->OnCompletion(SendDone(1));
  cq.port->OnError();
  cq.port->OnError();
  cq.port->OnCompletion(SendDone(2));
  EXPECT_EQ(WrIds(cq.PollAll()), std::vector<uint64_t>{1});
  bed_.Settle();
  EXPECT_EQ(bed_.sink.overruns, std::vector<uint64_t>{55}) << "said once";
}

TEST_F(CqPortTest, AHeadThatMakesNoSenseBreaksIt) {
  for (const uint32_t nonsense : {5u, 0xffffffffu, 0x80000000u}) {
    SCOPED_TRACE(nonsense);
    TestCq cq(bed_, session_, 4);
    const uint64_t corrupt_before = session_.port->Counters().corrupt_rings;
    for (uint64_t id = 0; id < 4; ++id) cq.port->OnCompletion(SendDone(id));
    cq.header->head.store(nonsense);
    bed_.sink.overruns.clear();
    cq.port->OnCompletion(SendDone(4));
    bed_.Settle();
    EXPECT_EQ(bed_.sink.overruns.size(), 1u);
    EXPECT_EQ(session_.port->Counters().corrupt_rings, corrupt_before + 1);
  }
}

struct ArmCase {
  const char* name;
  std::optional<bool> armed_solicited;  // how it is armed, if it is
  Wc wc;
  size_t events;
};

TEST_F(CqPortTest, OnlyWhatFitsTheArmingGivesAnEvent) {
  const ArmCase cases[] = {
      {"not armed", std::nullopt, SendDone(1), 0},
      {"any: send", false, SendDone(1), 1},
      {"any: receive", false, RecvDone(1), 1},
      {"any: error", false, SendDone(1, WcStatus::kWrFlushErr), 1},
      {"solicited: send", true, SendDone(1), 0},
      {"solicited: unsolicited receive", true, RecvDone(1), 0},
      {"solicited: solicited receive", true, RecvDone(1, true), 1},
      {"solicited: error", true, SendDone(1, WcStatus::kRetryExcErr), 1},
  };
  for (const ArmCase& c : cases) {
    SCOPED_TRACE(c.name);
    TestCq cq(bed_, session_, 4, &channel_, 321);
    if (c.armed_solicited) cq.reader.Arm(*c.armed_solicited);
    cq.port->OnCompletion(c.wc);
    EXPECT_EQ(channel_.ReadAll(), std::vector<uint64_t>(c.events, 321));
  }
}

TEST_F(CqPortTest, OneArmingGivesOneEvent) {
  TestCq cq(bed_, session_, 8, &channel_);
  cq.reader.Arm(false);
  cq.port->OnCompletion(SendDone(1));
  cq.port->OnCompletion(SendDone(2));
  EXPECT_EQ(channel_.ReadAll().size(), 1u);
  cq.reader.Arm(false);
  cq.port->OnCompletion(SendDone(3));
  EXPECT_EQ(channel_.ReadAll().size(), 1u);
}

TEST_F(CqPortTest, UnfitEntriesLeaveItArmed) {
  TestCq cq(bed_, session_, 8, &channel_);
  cq.reader.Arm(true);
  cq.port->OnCompletion(RecvDone(1, false));
  cq.port->OnCompletion(RecvDone(2, true));
  EXPECT_EQ(channel_.ReadAll().size(), 1u);
}

TEST_F(CqPortTest, SolicitedArmingDoesNotWeakenAnEarlierOne) {
  TestCq cq(bed_, session_, 8, &channel_);
  cq.reader.Arm(false);
  cq.reader.Arm(true);
  cq.port->OnCompletion(RecvDone(1, false));
  EXPECT_EQ(channel_.ReadAll().size(), 1u);
}

TEST_F(CqPortTest, TwoQueuesOnOneChannelSayWhichTheyAre) {
  TestCq first(bed_, session_, 8, &channel_, 1);
  TestCq second(bed_, session_, 8, &channel_, 2);
  first.reader.Arm(false);
  second.reader.Arm(false);
  second.port->OnCompletion(SendDone(1));
  first.port->OnCompletion(SendDone(1));
  EXPECT_EQ(channel_.ReadAll(), (std::vector<uint64_t>{2, 1}));
}

TEST_F(CqPortTest, AFullPipeKeepsTheEventUntilThereIsRoom) {
  TestCq cq(bed_, session_, 65536, &channel_, 9);
  // One page is the smallest pipe: 512 events.
  ASSERT_EQ(fcntl(channel_.pipe.read_end.get(), F_SETPIPE_SZ, 4096), 4096);
  for (int i = 0; i < 600; ++i) {
    cq.reader.Arm(false);
    cq.port->OnCompletion(SendDone(1));
  }
  EXPECT_GT(session_.port->Counters().channel_full, 0u);
  EXPECT_EQ(channel_.ReadAll().size(), 512u);
  // The kernel says that there is room: the engine's wait ends with the event written.
  bed_.engine().WaitForWork(bed_.now);
  EXPECT_EQ(channel_.ReadAll(), std::vector<uint64_t>{9}) << "one is to come, not 88";
  cq.reader.Arm(false);
  cq.port->OnCompletion(SendDone(1));
  EXPECT_EQ(channel_.ReadAll().size(), 1u) << "back to normal";
}

TEST_F(CqPortTest, ABusyEngineLooksForRoomAsWell) {
  TestCq cq(bed_, session_, 65536, &channel_, 9);
  ASSERT_EQ(fcntl(channel_.pipe.read_end.get(), F_SETPIPE_SZ, 4096), 4096);
  for (int i = 0; i < 513; ++i) {
    cq.reader.Arm(false);
    cq.port->OnCompletion(SendDone(1));
  }
  EXPECT_EQ(channel_.ReadAll().size(), 512u);
  bed_.now += 1'000'000;
  bed_.Turn();
  EXPECT_EQ(channel_.ReadAll().size(), 1u);
}

TEST_F(CqPortTest, AClosedChannelIsNoBodysProblem) {
  TestCq cq(bed_, session_, 8, &channel_);
  channel_.pipe.read_end.Reset();
  cq.reader.Arm(false);
  cq.port->OnCompletion(SendDone(1));
  EXPECT_EQ(cq.PollAll().size(), 1u);
}

TEST_F(CqPortTest, ACqThatGoesTakesItsWaitingEventAlong) {
  ASSERT_EQ(fcntl(channel_.pipe.read_end.get(), F_SETPIPE_SZ, 4096), 4096);
  {
    TestCq cq(bed_, session_, 65536, &channel_, 9);
    for (int i = 0; i < 513; ++i) {
      cq.reader.Arm(false);
      cq.port->OnCompletion(SendDone(1));
    }
  }
  EXPECT_EQ(channel_.ReadAll().size(), 512u);
  bed_.now += 1'000'000;
  bed_.Turn();
  EXPECT_TRUE(channel_.ReadAll().empty());
}

TEST_F(CqPortTest, CountsByStatus) {
  TestCq cq(bed_, session_, 8);
  cq.port->OnCompletion(RecvDone(1));
  cq.port->OnCompletion(SendDone(2, WcStatus::kWrFlushErr));
  cq.port->OnCompletion(SendDone(3, WcStatus::kWrFlushErr));
  cq.port->OnCompletion(SendDone(4, static_cast<WcStatus>(200)));  // no such status
  const SessionCounters counters = session_.port->Counters();
  EXPECT_EQ(counters.completions, 4u);
  EXPECT_EQ(counters.completion_errors, 3u);
  EXPECT_EQ(counters.completions_by_status[0], 1u);
  EXPECT_EQ(counters.completions_by_status[5], 2u);
  EXPECT_EQ(counters.completions_by_status[21], 1u);
  EXPECT_EQ(counters.recv_bytes, 10u);
}

TEST_F(CqPortTest, PurgeDropsOneQpsEntriesAndKeepsTheOrderOfTheOthers) {
  TestCq cq(bed_, session_, 8);
  for (uint64_t id = 0; id < 5; ++id) cq.port->OnCompletion(SendDone(99));
  cq.PollAll();  // so that the following ones wrap
  for (uint64_t id = 0; id < 7; ++id) {
    Wc wc = SendDone(id);
    wc.qp_cookie = id % 2 == 0 ? 10 : 11;
    cq.port->OnCompletion(wc);
  }
  std::multiset<uint64_t> dropped;
  cq.reader.Purge(10, [&dropped](const shm::Cqe& cqe) { dropped.insert(cqe.wr_id); });
  EXPECT_EQ(dropped, (std::multiset<uint64_t>{0, 2, 4, 6}));
  EXPECT_EQ(WrIds(cq.PollAll()), (std::vector<uint64_t>{1, 3, 5}));
  for (uint64_t id = 0; id < 8; ++id) cq.port->OnCompletion(SendDone(id));
  EXPECT_EQ(cq.PollAll().size(), 8u) << "the purged places are free again";
}

}  // namespace
}  // namespace rdmad::engine
