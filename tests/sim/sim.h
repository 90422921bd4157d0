// A deterministic simulation of the soft device: transports, a network and a clock, all from one
// seed.
//
// Most seeds are worlds of two hosts (or one, talking to itself) with a few RC connections, on a
// network that loses, repeats, reorders, delays, damages, marks and blocks packets and falls apart
// for a while. Random operations of random sizes; memory windows that are bound, used and ended by
// either side; in some worlds a UC connection, UD QPs and multicast groups, and a receive queue
// that all of these share; QPs that fail, are reset, destroyed, drained and connected again; memory
// that is withdrawn. Every eighth seed is a world of connection managers (cm_world.h). The rules
// that must hold through all of it stand in end.h, unreliable.h, datagrams.h, windows.h and
// shared_receives.h; besides: nothing hangs, what is sent again stays in proportion to what was
// lost, and in the end no timer, no active QP and no table entry is left.
//
//   bazel run //tests/sim:sim -- --seed=N        one seed again, --trace tells what happens
//   bazel run //tests/sim:sim -- --seeds=1..10000
#pragma once

#include <cstdint>
#include <string>

namespace rdmad::sim {

inline constexpr uint64_t kCmEvery = 8;  // every so many seeds one of the CM

struct SimOptions {
  uint64_t seed = 1;
  uint32_t operations = 0;  // 0: as many as the seed says; fewer of the same otherwise
  bool trace = false;
};

struct SimResult {
  std::string failure;  // empty: all was well
  uint32_t operations = 0;
  uint64_t packets = 0;
  uint64_t completions = 0;
  uint64_t successes = 0;
  uint64_t connections = 0;  // made, and made again
  uint64_t grants = 0;       // of memory windows that were bound, used and ended
  uint64_t fingerprint = 0;  // of everything that happened: the same for the same options
  double virtual_seconds = 0;
};

SimResult RunSim(const SimOptions& options);

// As RunSim, and in case of a failure the command that shows it again, with as few operations as
// halving finds.
SimResult RunAndShrink(const SimOptions& options);
std::string ReproductionOf(const SimOptions& options);

}  // namespace rdmad::sim
