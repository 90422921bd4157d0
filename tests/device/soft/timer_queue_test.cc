#include "daemon/device/soft/timer_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

namespace rdmad::soft {
namespace {

TEST(TimerQueue, EmptyHasNoDeadline) {
  TimerQueue queue;
  EXPECT_EQ(queue.Next(), kNever);
  EXPECT_EQ(queue.PopDue(kNever - 1), nullptr);
}

TEST(TimerQueue, TimersComeInOrderAndOnlyWhenDue) {
  TimerQueue queue;
  Timer a(nullptr), b(nullptr), c(nullptr);
  queue.Arm(a, 30);
  queue.Arm(b, 10);
  queue.Arm(c, 20);
  EXPECT_EQ(queue.Next(), 10);
  EXPECT_EQ(queue.PopDue(9), nullptr);
  EXPECT_EQ(queue.PopDue(25), &b);
  EXPECT_EQ(queue.PopDue(25), &c);
  EXPECT_EQ(queue.PopDue(25), nullptr);
  EXPECT_EQ(queue.PopDue(30), &a);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(TimerQueue, ArmingAgainMovesTheDeadline) {
  TimerQueue queue;
  Timer a(nullptr), b(nullptr);
  queue.Arm(a, 10);
  queue.Arm(b, 20);
  queue.Arm(a, 30);
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.PopDue(100), &b);
  EXPECT_EQ(queue.PopDue(100), &a);
  EXPECT_EQ(a.deadline, kNever) << "disarmed";
}

TEST(TimerQueue, CancelledTimersNeverCome) {
  TimerQueue queue;
  Timer a(nullptr), b(nullptr);
  queue.Arm(a, 10);
  queue.Arm(b, 20);
  queue.Cancel(a);
  queue.Cancel(a);
  queue.Arm(b, kNever);
  EXPECT_EQ(queue.Next(), kNever);
  EXPECT_EQ(queue.size(), 0u);
}

// Against a sorted map, with whatever a seed brings.
TEST(TimerQueue, AgreesWithAModel) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    TimerQueue queue;
    std::vector<std::unique_ptr<Timer>> timers;
    for (int i = 0; i < 200; ++i) timers.push_back(std::make_unique<Timer>(nullptr));
    std::map<Timer*, TimeNs> model;
    const auto earliest = [&] {
      TimeNs first = kNever;
      for (const auto& [timer, deadline] : model) first = std::min(first, deadline);
      return first;
    };
    for (int step = 0; step < 3000; ++step) {
      Timer* const timer = timers[random() % timers.size()].get();
      switch (random() % 4) {
        case 0:
        case 1: {
          const auto deadline = static_cast<TimeNs>(random() % 1000);
          queue.Arm(*timer, deadline);
          model[timer] = deadline;
          break;
        }
        case 2:
          queue.Cancel(*timer);
          model.erase(timer);
          break;
        case 3: {
          const auto now = static_cast<TimeNs>(random() % 1000);
          Timer* const due = queue.PopDue(now);
          if (due == nullptr) {
            ASSERT_GT(earliest(), now);
          } else {
            ASSERT_EQ(model.at(due), earliest());
            ASSERT_LE(model.at(due), now);
            model.erase(due);
          }
          break;
        }
      }
      ASSERT_EQ(queue.Next(), earliest());
      ASSERT_EQ(queue.size(), model.size());
    }
    for (auto& timer : timers) queue.Cancel(*timer);
  }
}

}  // namespace
}  // namespace rdmad::soft
