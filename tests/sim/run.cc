// One simulation, and what is left of it when it fails.
#include <utility>

#include "tests/sim/cm_world.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"

namespace rdmad::sim {

SimResult RunSim(const SimOptions& options) {
  if (options.seed % kCmEvery == 0) return CmWorld(options).Run();
  return World(options).Run();
}

std::string ReproductionOf(const SimOptions& options) {
  std::string command = "bazel run //tests/sim:sim -- --seed=" + std::to_string(options.seed);
  if (options.operations != 0) command += " --operations=" + std::to_string(options.operations);
  return command;
}

SimResult RunAndShrink(const SimOptions& options) {
  SimResult result = RunSim(options);
  if (result.failure.empty()) return result;
  // Operations are the same up to where they end, so fewer of them are the same story, cut short.
  SimOptions shorter = options;
  uint32_t good = 0;
  uint32_t bad = result.operations;
  while (bad - good > 1) {
    shorter.operations = good + (bad - good) / 2;
    SimResult attempt = RunSim(shorter);
    if (attempt.failure.empty()) {
      good = shorter.operations;
    } else {
      bad = shorter.operations;
      result = std::move(attempt);
    }
  }
  shorter.operations = bad;
  result.failure += "\n  " + ReproductionOf(shorter) + " --trace";
  return result;
}

}  // namespace rdmad::sim
