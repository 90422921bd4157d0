#include "daemon/engine/engine.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

using device::QpState;
using device::TimeNs;

// Writes down when it was activated and deactivated.
class Scribe final : public device::EngineObject {
 public:
  Scribe(std::vector<std::string>* log, std::string name) : log_(log), name_(std::move(name)) {}
  void Activate(TimeNs) noexcept override { log_->push_back("+" + name_); }
  void Deactivate(TimeNs) noexcept override { log_->push_back("-" + name_); }

 private:
  std::vector<std::string>* const log_;
  const std::string name_;
};

device::QpAttr ToState(QpState state) {
  device::QpAttr attr;
  attr.mask = device::kQpAttrState;
  attr.state = state;
  return attr;
}

bool IsReadable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

TimeNs RealNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return TimeNs{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TEST(Engine, CommandsRunInOrderAndAnswersComeInOrder) {
  EngineBed bed;
  std::vector<std::string> log;
  Scribe a(&log, "a");
  Scribe b(&log, "b");
  bed.proxy().Activate(a, [&log] { log.push_back("a is on"); });
  bed.proxy().Activate(b, [&log] { log.push_back("b is on"); });
  bed.proxy().Deactivate(a, [&log] { log.push_back("a is off"); });
  EXPECT_TRUE(log.empty()) << "nothing happens in the caller";
  bed.engine().DoWork(1);
  EXPECT_EQ(log, (std::vector<std::string>{"+a", "+b", "-a"}));
  EXPECT_TRUE(IsReadable(bed.proxy().poll_fd()));
  bed.proxy().Poll();
  EXPECT_EQ(log, (std::vector<std::string>{"+a", "+b", "-a", "a is on", "b is on", "a is off"}));
  EXPECT_FALSE(IsReadable(bed.proxy().poll_fd()));
}

TEST(Engine, CommandsBeyondTheRingWaitAndAreCounted) {
  EngineOptions options;
  options.command_ring_slots = 4;
  options.event_ring_slots = 8;
  EngineBed bed(options);
  std::vector<std::string> log;
  Scribe scribe(&log, "x");
  std::vector<int> answered;
  for (int i = 0; i < 100; ++i) {
    if (i % 2 == 0) {
      bed.proxy().Activate(scribe, [&answered, i] { answered.push_back(i); });
    } else {
      bed.proxy().Deactivate(scribe, [&answered, i] { answered.push_back(i); });
    }
  }
  EXPECT_EQ(bed.proxy().Stats().commands_delayed, 96u);
  int turns = 0;
  while (answered.size() < 100) {
    bed.Turn();
    ++turns;
  }
  EXPECT_EQ(turns, 25);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(answered[i], i);
    EXPECT_EQ(log[i], i % 2 == 0 ? "+x" : "-x");
  }
}

TEST(Engine, ACallbackMaySendCommands) {
  EngineOptions options;
  options.command_ring_slots = 1;
  EngineBed bed(options);
  std::vector<std::string> log;
  Scribe scribe(&log, "x");
  int rounds = 0;
  std::function<void()> again = [&] {
    if (++rounds < 10) bed.proxy().Activate(scribe, again);
  };
  bed.proxy().Activate(scribe, again);
  bed.Settle();
  EXPECT_EQ(rounds, 10);
}

TEST(Engine, ModifyAndQueryAnswerWithTheDevicesWord) {
  EngineBed bed;
  TestSession session(bed);
  TestCq cq(bed, session, 16);
  TestQp qp(bed, session, cq);
  device::QpResult result = device::QpResult::kGone;
  device::QpAttr queried;
  bed.proxy().ModifyQp(*qp.qp, ToState(QpState::kSqd), [&](device::QpResult r) { result = r; });
  bed.proxy().QueryQp(*qp.qp, [&](const device::QpAttr& attr) { queried = attr; });
  bed.Settle();
  EXPECT_EQ(result, device::QpResult::kOk);
  EXPECT_EQ(queried.state, QpState::kSqd);
  EXPECT_EQ(queried.dest_qpn, qp.qp->qpn());
}

// The order of a turn: a command that was visible before the bell was rung is executed before the
// WRs.
TEST(Engine, ACommandIsExecutedBeforeTheWrsThatDependOnIt) {
  bool answered = false;  // the answer may come as late as the QP's end
  EngineBed bed;
  TestSession session(bed);
  TestCq cq(bed, session, 16);
  TestQpOptions options;
  options.state = QpState::kInit;
  TestQp qp(bed, session, cq, options);
  bed.Settle();
  bed.proxy().ModifyQp(*qp.qp, ToState(QpState::kRts), [&](device::QpResult) { answered = true; });
  ASSERT_EQ(qp.Recv(1), 0);
  ASSERT_EQ(qp.Send(2), 0);
  qp.Ring();  // does not even wait for the answer
  bed.engine().DoWork(1);
  EXPECT_FALSE(answered);
  EXPECT_EQ(Statuses(cq.PollAll()), (std::vector<device::WcStatus>(2, device::WcStatus::kSuccess)));
}

TEST(Engine, AQueueThatIsTakenAwayInTheTurnItRangHasNoTurn) {
  EngineBed bed;
  TestSession session(bed);
  TestCq cq(bed, session, 16);
  TestQp qp(bed, session, cq);
  bed.Settle();
  ASSERT_EQ(qp.Send(1), 0);
  qp.Ring();
  bool gone = false;
  bed.proxy().Deactivate(*qp.port, [&gone] { gone = true; });
  bed.Turn();
  EXPECT_TRUE(gone);
  EXPECT_EQ(qp.qp->send_posts, 0u);
  bed.Activate(*qp.port);  // for the end of the test
}

TEST(Engine, AsyncEventsOfADeviceReachControl) {
  EngineBed bed;
  TestSession session(bed);
  TestCq cq(bed, session, 16);
  TestQp qp(bed, session, cq);
  bed.engine().async_sink()->OnAsyncEvent({device::AsyncEventType::kCommEst, 7, qp.qp->qpn()});
  bed.Turn();
  ASSERT_EQ(bed.sink.async.size(), 1u);
  EXPECT_EQ(bed.sink.async[0].type, device::AsyncEventType::kCommEst);
}

TEST(Engine, MoreEventsThanTheRingHoldsArriveOverSeveralTurns) {
  EngineOptions options;
  options.command_ring_slots = 4;
  options.event_ring_slots = 8;
  EngineBed bed(options);
  for (uint64_t token = 0; token < 100; ++token) {
    bed.engine().async_sink()->OnAsyncEvent({device::AsyncEventType::kQpFatal, token, 0});
  }
  // Control rings the engine when it has made room, so a sleeping engine would come back for more.
  size_t seen = 0;
  while (bed.sink.async.size() < 100) {
    bed.engine().DoWork(++bed.now);
    bed.proxy().Poll();
    ASSERT_GT(bed.sink.async.size(), seen);
    seen = bed.sink.async.size();
    if (seen < 100) bed.engine().WaitForWork(bed.now);  // must not block
  }
  EXPECT_GT(bed.proxy().Stats().events_delayed, 0u);
  EXPECT_EQ(bed.proxy().Stats().events_dropped, 0u);
}

TEST(Engine, AnswersHaveRoomHoweverManyEventsWait) {
  EngineOptions options;
  options.command_ring_slots = 4;
  options.event_ring_slots = 8;
  EngineBed bed(options);
  for (uint64_t token = 0; token < 200; ++token) {
    bed.engine().async_sink()->OnAsyncEvent({device::AsyncEventType::kQpFatal, token, 0});
  }
  bed.engine().DoWork(1);
  std::vector<std::string> log;
  Scribe scribe(&log, "x");
  int answered = 0;
  for (int i = 0; i < 4; ++i) bed.proxy().Activate(scribe, [&answered] { ++answered; });
  bed.engine().DoWork(2);
  bed.proxy().Poll();
  EXPECT_EQ(answered, 4);
}

TEST(Engine, IdleQueuesCostNothing) {
  EngineBed bed;
  TestSession session(bed);
  TestCq cq(bed, session, 64);
  std::vector<std::unique_ptr<TestQp>> qps;
  for (uint32_t i = 0; i < 10000; ++i) {
    TestQpOptions options;
    options.depth = 1;
    options.max_sge = 1;
    options.max_inline_bytes = 0;
    options.doorbell_index = i;
    options.owner_token = i;
    qps.push_back(std::make_unique<TestQp>(bed, session, cq, options));
  }
  bed.Settle();
  // Every ring now holds nonsense: an engine that looked at one would break its QP.
  for (auto& qp : qps) qp->send_header->tail.store(0x40000000);
  for (int turn = 0; turn < 1000; ++turn) EXPECT_EQ(bed.Turn(), 0);
  EXPECT_TRUE(bed.sink.async.empty());
  EXPECT_EQ(session.port->Counters().doorbells, 0u);
  for (auto& qp : qps) qp->send_header->tail.store(0);
  // And one that rings is found at once.
  ASSERT_EQ(qps[7777]->Recv(1), 0);
  ASSERT_EQ(qps[7777]->Send(2), 0);
  qps[7777]->Ring();
  bed.Turn();
  EXPECT_EQ(cq.PollAll().size(), 2u);
}

TEST(Engine, TheWaitEndsAtTheDataPathsDeadline) {
  EngineBed bed;
  const TimeNs now = RealNow();
  bed.path.deadline = now + 3'000'000;
  bed.engine().WaitForWork(now);
  const TimeNs woke = RealNow();
  EXPECT_GE(woke, bed.path.deadline);
  bed.engine().DoWork(woke);
  EXPECT_EQ(bed.path.timers_fired.load(), 1u);
}

TEST(Engine, ItDoesNotWaitWhenADeadlineHasPassed) {
  EngineBed bed;
  bed.path.deadline = 5;
  bed.engine().WaitForWork(5);
  EXPECT_EQ(bed.proxy().Stats().wakeups, 0u);
}

TEST(Engine, AnyReasonToWorkEndsTheWaitOrForbidsIt) {
  EngineBed bed;
  TestSession session(bed);
  TestCq cq(bed, session, 16);
  TestQp qp(bed, session, cq);
  bed.Settle();
  std::vector<std::string> log;
  Scribe scribe(&log, "x");

  // Each of these would block for ever if its reason were overlooked.
  qp.Ring();
  bed.engine().WaitForWork(0);
  bed.Settle();
  bed.proxy().Activate(scribe, nullptr);
  bed.engine().WaitForWork(0);
  bed.Settle();
  bed.path.Poke();
  bed.engine().WaitForWork(0);
  bed.Settle();
  EXPECT_EQ(bed.path.pokes.load(), 1u);
  EXPECT_EQ(log.size(), 1u);
}

TEST(Engine, ThePageSaysSleepingOnlyWhileItSleeps) {
  EngineBed bed;
  TestSession session(bed);
  EXPECT_FALSE(shm::EngineNeedsWake(session.page()));
  bed.engine().WaitForWork(0, 1000);
  EXPECT_FALSE(shm::EngineNeedsWake(session.page()));
  EXPECT_TRUE(shm::IsValidHeader(session.page().header, shm::SegmentKind::kEnginePage,
                                 bed.proxy().engine_page_bytes()));
  EXPECT_EQ(mmap(nullptr, bed.proxy().engine_page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                 bed.proxy().engine_page_fd(), 0),
            MAP_FAILED)
      << "clients cannot write to it";
}

TEST(Engine, NewDescriptorsOfADataPathAreWatchedAndOldOnesNoMore) {
  EngineBed bed;
  Pipe pipe;
  bed.path.SetPollFds({pipe.read_end.get()});
  ASSERT_EQ(write(pipe.write_end.get(), "x", 1), 1);
  bed.engine().WaitForWork(0);  // must not block
  bed.path.SetPollFds({});
  const uint64_t before = bed.proxy().Stats().wakeups;
  const TimeNs start = RealNow();
  bed.engine().WaitForWork(start, 2'000'000);
  EXPECT_GE(RealNow() - start, 2'000'000) << "nobody watches the readable pipe";
  EXPECT_EQ(bed.proxy().Stats().wakeups, before + 1);
}

// Gives up a descriptor when it is deactivated, as a soft device does with its socket.
class SocketOwner final : public device::EngineObject {
 public:
  explicit SocketOwner(testing::FakeDataPath* path) : path_(path) {}
  void Activate(TimeNs) noexcept override {}
  void Deactivate(TimeNs) noexcept override { path_->SetPollFds({}); }

 private:
  testing::FakeDataPath* const path_;
};

TEST(Engine, ADescriptorIsOutOfTheWaitSetBeforeTheAnswer) {
  EngineBed bed;
  auto pipe = std::make_unique<Pipe>();
  bed.path.SetPollFds({pipe->read_end.get()});
  bed.engine().WaitForWork(0, 1000);
  SocketOwner owner(&bed.path);
  const int number = pipe->read_end.get();
  bool done = false;
  // The answer's callback closes the descriptor and its number goes to a session's wake pipe, which
  // must stay watched.
  bed.proxy().Deactivate(owner, [&] { done = true; });
  bed.Await(done);
  pipe.reset();
  TestSession session(bed);
  EXPECT_GE(number, 0);
  ASSERT_EQ(write(session.wake.write_end.get(), "x", 1), 1);
  bed.engine().WaitForWork(0);  // must not block
}

TEST(Engine, StatsCountTurnsAndBusyTime) {
  EngineBed bed;
  std::vector<std::string> log;
  Scribe scribe(&log, "x");
  bed.engine().DoWork(1000);
  bed.proxy().Activate(scribe, nullptr);
  bed.engine().DoWork(2000);  // works
  bed.engine().DoWork(2500);
  bed.engine().DoWork(9000);
  const EngineStats stats = bed.proxy().Stats();
  EXPECT_EQ(stats.turns, 4u);
  EXPECT_EQ(stats.busy_ns, 500u);
  EXPECT_FALSE(stats.sleeping);
}

}  // namespace
}  // namespace rdmad::engine
