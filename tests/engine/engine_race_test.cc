// Two real threads at a time: what must not be lost between one that goes to sleep and one that
// brings work. Each wait has a limit of a second; nothing here ever needs it unless a wake-up was
// lost.

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/engine/cq_port.h"
#include "daemon/engine/engine.h"
#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

#ifdef RD_SANITIZER
constexpr uint64_t kScale = 10;  // everything is that much slower
#else
constexpr uint64_t kScale = 1;
#endif

// A lost wake-up lasts for ever; a machine that does too much at once takes seconds.
constexpr int kStallMs = 10'000;

device::TimeNs Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return device::TimeNs{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Mostly nothing, often a microsecond or so, sometimes long enough for the other side to fall
// asleep.
void RandomGap(std::mt19937_64& random) {
  const uint64_t kind = random() % 128;
  if (kind < 64) return;
  const device::TimeNs gap_ns = kind < 127 ? static_cast<device::TimeNs>(random() % 1500)
                                           : static_cast<device::TimeNs>(random() % 60'000);
  const device::TimeNs until = Now() + gap_ns;
  while (Now() < until) {
    if (kind == 127) sched_yield();
  }
}

// Up to a few hundred nanoseconds, so that two threads that start from one event meet again at
// every possible offset.
void RandomStep(std::mt19937_64& random, uint64_t max_cycles) {
  for (uint64_t left = random() % max_cycles; left != 0; --left) {
    asm volatile("" ::: "memory");  // one cycle or so each
  }
}

bool WaitReadable(int fd) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, kStallMs) == 1;
}

// CASES 19. A thread of the test drives the port, and the engine's turns, in the engine's place, so
// that only the arming protocol decides who wakes whom.
class ArmRaceTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kCapacity = 1024;

  // Completes `count` messages into `cqs` in bursts of one to eight, each to one of them in turn.
  // The next burst waits until the last one was consumed: a later message would hide a lost
  // wake-up. The last message of a burst is solicited, the others are not.
  void Produce(std::vector<TestCq*> cqs, uint64_t count) {
    std::mt19937_64 random(count);
    uint64_t produced = 0;
    for (uint64_t burst = 0; produced < count; ++burst) {
      const uint64_t end = std::min(count, produced + 1 + random() % 8);
      RandomStep(random, 300);
      for (; produced < end; ++produced) {
        device::Wc wc{};
        wc.wr_id = produced;
        wc.flags = shm::kCqeRecvQueue;
        wc.solicited = produced + 1 == end;
        cqs[burst % cqs.size()]->port->OnCompletion(wc);
      }
      bursts_.fetch_add(1, std::memory_order_relaxed);
      // Stays on its core for a while: after a yield both would meet far apart.
      for (int spins = 0; consumed_.load(std::memory_order_acquire) < produced; ++spins) {
        if (spins <= 20'000) continue;
        sched_yield();
        // A consumer that finds something at each poll reads no event meanwhile, so the pipe may
        // fill up; then the engine writes the rest when there is room.
        bed_.engine().DoWork(Now());
      }
      RandomGap(random);
    }
  }

  // Arms, then takes what is there. Returns how many.
  uint64_t ArmAndConsume(TestCq& cq, bool solicited_only) {
    RandomStep(random_, 1500);
    cq.reader.Arm(solicited_only);
    uint64_t count = 0;
    shm::Cqe cqes[32];
    while (const size_t polled = cq.reader.Poll(cqes)) count += polled;
    consumed_.fetch_add(count, std::memory_order_release);
    return count;
  }

  bool WaitEvent(uint64_t* handle) {
    if (!WaitReadable(channel_.pipe.read_end.get())) return false;
    shm::CompletionEvent event;
    if (read(channel_.pipe.read_end.get(), &event, sizeof(event)) != sizeof(event)) return false;
    *handle = event.cq_handle;
    return true;
  }

  EngineBed bed_;
  TestSession session_{bed_};
  TestChannel channel_{bed_, session_};
  std::atomic<uint64_t> consumed_{0};
  std::atomic<uint64_t> bursts_{0};
  std::mt19937_64 random_{99};  // the consumer's
};

TEST_F(ArmRaceTest, AMillionMessagesWithoutALostWakeUp) {
  constexpr uint64_t kMessages = 1'000'000 / kScale;
  TestCq cq(bed_, session_, kCapacity, &channel_);
  std::thread producer([&] { Produce({&cq}, kMessages); });
  uint64_t done = 0;
  uint64_t waits = 0;
  while (done < kMessages) {
    if (const uint64_t count = ArmAndConsume(cq, false)) {
      done += count;
      continue;
    }
    uint64_t handle;
    if (!WaitEvent(&handle)) {
      ADD_FAILURE() << "stalled after " << done << " messages and " << waits << " waits";
      break;
    }
    ++waits;
  }
  consumed_.store(UINT64_MAX / 2);  // lets the producer end after a failure
  producer.join();
  EXPECT_GT(waits, 10u) << "the race was run";
}

TEST_F(ArmRaceTest, SolicitedOnlyWakesForSolicitedAndForNothingElse) {
  constexpr uint64_t kMessages = 300'000 / kScale;
  TestCq cq(bed_, session_, kCapacity, &channel_);
  std::thread producer([&] { Produce({&cq}, kMessages); });
  uint64_t done = 0;
  uint64_t events = 0;
  while (done < kMessages) {
    done += ArmAndConsume(cq, true);
    if (done >= kMessages) break;
    uint64_t handle;
    if (!WaitEvent(&handle)) {
      ADD_FAILURE() << "stalled after " << done;
      break;
    }
    ++events;
  }
  consumed_.store(UINT64_MAX / 2);
  producer.join();
  EXPECT_LE(events, bursts_.load()) << "each burst had one solicited message";
}

TEST_F(ArmRaceTest, TwoQueuesOnOneChannel) {
  constexpr uint64_t kMessages = 300'000 / kScale;
  TestCq first(bed_, session_, kCapacity, &channel_, 1);
  TestCq second(bed_, session_, kCapacity, &channel_, 2);
  std::thread producer([&] { Produce({&first, &second}, kMessages); });
  uint64_t done = 0;
  done += ArmAndConsume(first, false) + ArmAndConsume(second, false);
  while (done < kMessages) {
    uint64_t handle = 0;
    if (!WaitEvent(&handle)) {
      ADD_FAILURE() << "stalled after " << done;
      break;
    }
    TestCq& cq = handle == 1 ? first : second;
    done += ArmAndConsume(cq, false);
  }
  consumed_.store(UINT64_MAX / 2);
  producer.join();
}

// The engine in its own thread. With no spinning it sleeps after every message.
class DoorbellRaceTest : public ::testing::TestWithParam<device::TimeNs> {
 protected:
  static EngineOptions Options() {
    EngineOptions options;
    options.idle.max_spin_ns = GetParam();
    return options;
  }
  DoorbellRaceTest() : bed_(Options()) { bed_.Start(); }

  TestQpOptions SmallQp() {
    TestQpOptions options;
    options.max_sge = 1;
    options.max_inline_bytes = 0;
    return options;
  }

  EngineBed bed_;
};

TEST_P(DoorbellRaceTest, NoDoorbellIsLost) {
  constexpr uint64_t kMessages = 200'000 / kScale;
  TestSession session(bed_);
  TestCq cq(bed_, session, 64);
  TestQp qp(bed_, session, cq, SmallQp());
  std::mt19937_64 random(1);
  for (uint64_t id = 0; id < kMessages; ++id) {
    ASSERT_EQ(qp.Recv(id), 0);
    ASSERT_EQ(qp.Send(id), 0);
    qp.Ring();
    size_t polled = 0;
    shm::Cqe cqes[2];
    const device::TimeNs give_up = Now() + kStallMs * 1'000'000ll;
    while (polled < 2) {
      polled += cq.reader.Poll(std::span(cqes).subspan(polled));
      if (polled < 2) {
        ASSERT_LT(Now(), give_up) << "stalled at message " << id;
        sched_yield();
      }
    }
    qp.recvs.RetireOne();
    qp.sends.RetireUpTo(cqes[1].wqe_count);
    RandomGap(random);
  }
}

TEST_P(DoorbellRaceTest, BothSidesSleepAndWakeEachOther) {
  constexpr uint64_t kMessages = 50'000 / kScale;
  TestSession session(bed_);
  TestChannel channel(bed_, session);
  TestCq cq(bed_, session, 64, &channel);
  TestQp qp(bed_, session, cq, SmallQp());
  std::mt19937_64 random(2);
  for (uint64_t id = 0; id < kMessages; ++id) {
    ASSERT_EQ(qp.Recv(id), 0);
    ASSERT_EQ(qp.Send(id), 0);
    qp.Ring();
    size_t polled = 0;
    shm::Cqe cqes[2];
    while (polled < 2) {
      cq.reader.Arm(false);
      polled += cq.reader.Poll(std::span(cqes).subspan(polled));
      if (polled == 2) break;
      ASSERT_TRUE(WaitReadable(channel.pipe.read_end.get())) << "stalled at message " << id;
      channel.ReadAll();
    }
    qp.recvs.RetireOne();
    qp.sends.RetireUpTo(cqes[1].wqe_count);
    RandomGap(random);
  }
}

class NoObject final : public device::EngineObject {
 public:
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
};

TEST_P(DoorbellRaceTest, NoCommandIsLost) {
  constexpr uint64_t kCommands = 100'000 / kScale;
  NoObject object;
  std::mt19937_64 random(3);
  uint64_t answered = 0;
  for (uint64_t i = 0; i < kCommands; ++i) {
    bed_.proxy().Activate(object, [&answered] { ++answered; });
    while (answered <= i) {
      ASSERT_TRUE(WaitReadable(bed_.proxy().poll_fd())) << "stalled at command " << i;
      bed_.proxy().Poll();
    }
    RandomGap(random);
  }
}

INSTANTIATE_TEST_SUITE_P(Spin, DoorbellRaceTest, ::testing::Values(0, 20'000),
                         [](const auto& spin) { return "Ns" + std::to_string(spin.param); });

// An engine without work sleeps and stays asleep. A wake-up for the last command may still be on
// its way when it sleeps for the first time.
TEST(EngineThread, IdleIsIdle) {
  EngineBed bed;
  bed.Start();
  TestSession session(bed);
  TestCq cq(bed, session, 64);
  TestQp qp(bed, session, cq);
  const device::TimeNs give_up = Now() + kStallMs * 1'000'000ll;
  EngineStats before = bed.proxy().Stats();
  for (int quiet = 0; quiet < 3;) {
    ASSERT_LT(Now(), give_up) << "turns=" << before.turns << " wakeups=" << before.wakeups;
    ::poll(nullptr, 0, 100);  // time is what this test is about
    const EngineStats after = bed.proxy().Stats();
    const bool slept = after.turns == before.turns && after.wakeups == before.wakeups;
    quiet = slept && after.sleeping ? quiet + 1 : 0;
    before = after;
  }
  EXPECT_TRUE(shm::EngineNeedsWake(session.page()));
}

TEST(EngineThread, StopEndsASleepingEngine) {
  EngineBed bed;
  bed.Start();
  const device::TimeNs give_up = Now() + kStallMs * 1'000'000ll;
  while (!bed.proxy().Stats().sleeping) {
    ASSERT_LT(Now(), give_up);
    sched_yield();
  }
  bed.Stop();
}

// A QP is taken away and freed while its client posts as fast as it can; its place is used again.
TEST(EngineThread, QueuePairsComeAndGoUnderTraffic) {
  EngineBed bed;
  bed.Start();
  TestSession session(bed);
  std::mt19937_64 random(4);
  for (int round = 0; round < static_cast<int>(300 / kScale); ++round) {
    TestCq cq(bed, session, 1024);
    TestQpOptions options;
    options.max_sge = 1;
    options.max_inline_bytes = 0;
    TestQp qp(bed, session, cq, options);
    std::atomic<bool> stop{false};
    std::thread client([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        while (qp.Recv(1) == 0) {
        }
        while (qp.Send(2) == 0) {
        }
        qp.Ring();
        shm::Cqe cqes[32];
        const size_t polled = cq.reader.Poll(cqes);
        for (size_t i = 0; i < polled; ++i) {
          if ((cqes[i].flags & shm::kCqeRecvQueue) != 0) {
            qp.recvs.RetireOne();
          } else {
            qp.sends.RetireUpTo(cqes[i].wqe_count);
          }
        }
      }
    });
    const device::TimeNs until = Now() + static_cast<device::TimeNs>(random() % 500'000);
    while (Now() < until) sched_yield();
    qp.Close();  // the client goes on posting
    stop.store(true, std::memory_order_relaxed);
    client.join();
    const size_t left = cq.PollAll().size();
    EXPECT_LE(left, 32u) << "no completion comes after the QP is gone";
  }
}

// A client that writes anything anywhere it can, while another one works: promise 1.
TEST(EngineThread, AHostileClientHarmsOnlyItself) {
  EngineBed bed;
  bed.Start();
  TestSession good_session(bed, 1);
  TestCq good_cq(bed, good_session, 64);
  TestQpOptions good_options;
  good_options.owner_token = 1'000'000;
  TestQp good(bed, good_session, good_cq, good_options);
  uint64_t sent = 0;
  uint64_t noticed = 0;

  for (uint64_t seed = 1; seed <= 30 / kScale; ++seed) {
    SCOPED_TRACE(seed);
    TestSession session(bed, 100 + seed);
    TestChannel channel(bed, session);
    TestCq cq(bed, session, 16, &channel);
    TestQpOptions options;
    options.owner_token = seed;
    options.doorbell_index = 70;
    TestQp qp(bed, session, cq, options);
    qp.qp->copy_bytes = false;
    const RingMemory* const targets[] = {&session.control_memory, &cq.memory, &qp.send_memory,
                                         &qp.recv_memory};
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> scribbled{0};
    std::thread scribbler([&] {
      std::mt19937_64 random(seed);
      while (!stop.load(std::memory_order_relaxed)) {
        const RingMemory& target = *targets[random() % std::size(targets)];
        uint64_t* const words = reinterpret_cast<uint64_t*>(target.data());
        uint64_t value = random();
        if (random() % 2 != 0) value &= 0x0307030f0f0300ff;
        __atomic_store_n(&words[random() % (target.bytes() / 8)], value, __ATOMIC_RELAXED);
        // Headers are a small part of the memory and the most interesting one.
        if (random() % 4 == 0) {
          (random() % 2 == 0 ? qp.send_header : qp.recv_header)
              ->tail.fetch_add(random() % 20, std::memory_order_release);
        }
        qp.ringer.Ring(70);
        scribbled.fetch_add(1, std::memory_order_relaxed);
      }
    });
    // On a busy machine the scribbler gets its turn late.
    for (int i = 0; i < 25 || scribbled.load(std::memory_order_relaxed) < 100; ++i) {
      // The good one is served all the time.
      ASSERT_EQ(good.Recv(sent), 0);
      ASSERT_EQ(good.Send(sent), 0);
      good.Ring();
      ++sent;
      size_t polled = 0;
      shm::Cqe cqes[2];
      const device::TimeNs give_up = Now() + kStallMs * 1'000'000ll;
      while (polled < 2) {
        polled += good_cq.reader.Poll(std::span(cqes).subspan(polled));
        if (polled < 2) {
          ASSERT_LT(Now(), give_up) << "the good client waits";
          sched_yield();
        }
      }
      ASSERT_EQ(cqes[0].status, 0);
      ASSERT_EQ(cqes[1].status, 0);
      ASSERT_EQ(cqes[1].wr_id, sent - 1);
      good.recvs.RetireOne();
      good.sends.RetireUpTo(cqes[1].wqe_count);
      // A broken QP is no target any more: revive it.
      bed.Modify(*qp.qp, device::QpState::kReset);
      bed.Modify(*qp.qp, device::QpState::kRts);
    }
    stop.store(true, std::memory_order_relaxed);
    scribbler.join();
    noticed += session.port->Counters().corrupt_rings + session.port->Counters().malformed_wrs;
  }
  EXPECT_GT(noticed, 0u) << "the scribbling had effect";
  EXPECT_EQ(good_session.port->Counters().corrupt_rings, 0u);
  EXPECT_EQ(good_session.port->Counters().malformed_wrs, 0u);
}

}  // namespace
}  // namespace rdmad::engine
