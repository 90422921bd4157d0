// The simulation by hand: see sim.h.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/sim.h"

namespace {

struct Arguments {
  rdmad::sim::SimOptions options;
  uint64_t first = 1;
  uint64_t last = 1000;
  uint64_t most_failures = 10;
};

[[noreturn]] void Usage(const char* program) {
  std::fprintf(stderr,
               "%s [--seed=N | --seeds=FROM..TO] [--operations=N] [--trace] [--failures=N]\n"
               "  Exit code 1 if a seed fails; --failures: stop after so many (10).\n",
               program);
  std::exit(2);
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    char* end = nullptr;
    const uint64_t number = std::strtoull(value.c_str(), &end, 0);
    if (name == "--seed") {
      arguments.first = arguments.last = number;
    } else if (name == "--seeds" && std::string(end).starts_with("..")) {
      arguments.first = number;
      arguments.last = std::strtoull(end + 2, nullptr, 0);
    } else if (name == "--operations") {
      arguments.options.operations = static_cast<uint32_t>(number);
    } else if (name == "--failures") {
      arguments.most_failures = number;
    } else if (name == "--trace") {
      arguments.options.trace = true;
    } else {
      Usage(argv[0]);
    }
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments = Parse(argc, argv);
  const auto start = std::chrono::steady_clock::now();
  uint64_t failures = 0;
  uint64_t seeds = 0;
  uint64_t packets = 0;
  uint64_t completions = 0;
  uint64_t successes = 0;
  uint64_t connections = 0;
  uint64_t windows = 0;
  double virtual_seconds = 0;
  for (uint64_t seed = arguments.first; seed <= arguments.last; ++seed) {
    arguments.options.seed = seed;
    const bool shrink = !arguments.options.trace;
    const auto result = shrink ? rdmad::sim::RunAndShrink(arguments.options)
                               : rdmad::sim::RunSim(arguments.options);
    ++seeds;
    packets += result.packets;
    completions += result.completions;
    successes += result.successes;
    connections += result.connections;
    windows += result.grants > 0 ? 1 : 0;
    virtual_seconds += result.virtual_seconds;
    if (!result.failure.empty()) {
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), result.failure.c_str());
      std::fflush(stdout);
      if (++failures >= arguments.most_failures) break;
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%llu seeds, %llu failed, %.1f s, %.0f seeds/s; %llu connections, %llu packets, "
      "%llu completions (%llu of success), %.0f s of virtual time; windows bound, used and ended "
      "in "
      "%llu seeds\n",
      static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(failures), seconds,
      static_cast<double>(seeds) / seconds, static_cast<unsigned long long>(connections),
      static_cast<unsigned long long>(packets), static_cast<unsigned long long>(completions),
      static_cast<unsigned long long>(successes), virtual_seconds,
      static_cast<unsigned long long>(windows));
  return failures == 0 ? 0 : 1;
}
