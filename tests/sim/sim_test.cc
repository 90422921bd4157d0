// The simulation within a fixed budget: as many seeds as fit into it, always from the first one on.
// More of them, and one again: `bazel run //tests/sim:sim -- --help`.
#include "tests/sim/sim.h"

#include <gtest/gtest.h>

#include <chrono>

namespace rdmad::sim {
namespace {

TEST(Simulation, ManySeedsAreClean) {
  constexpr auto kBudget = std::chrono::seconds(20);
  constexpr uint64_t kMostSeeds = 5000;
  const auto end = std::chrono::steady_clock::now() + kBudget;
  uint64_t seeds = 0;
  uint64_t successes = 0;
  int failures = 0;
  while (seeds < kMostSeeds && failures < 3 && std::chrono::steady_clock::now() < end) {
    const SimResult result = RunAndShrink({.seed = ++seeds});
    successes += result.successes;
    if (result.failure.empty()) continue;
    ++failures;
    ADD_FAILURE() << "seed " << seeds << ": " << result.failure;
  }
  RecordProperty("seeds", static_cast<int>(seeds));
  std::printf("%d seeds\n", static_cast<int>(seeds));
  EXPECT_GT(successes, seeds * 10) << "hardly anything went through: this tests nothing";
}

TEST(Simulation, TheSameSeedIsTheSameStory) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const SimResult once = RunSim({.seed = seed});
    const SimResult again = RunSim({.seed = seed});
    EXPECT_EQ(once.fingerprint, again.fingerprint) << ReproductionOf({.seed = seed});
    EXPECT_GT(once.completions, 0u);
  }
}

}  // namespace
}  // namespace rdmad::sim
