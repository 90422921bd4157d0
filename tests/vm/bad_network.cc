#include "tests/vm/bad_network.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <sstream>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/status_testing.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

std::string Tc(const std::string& words) {
  std::vector<std::string> argv = {"tc", "-s", "qdisc"};
  std::istringstream in(words);
  for (std::string word; in >> word;) argv.push_back(word);
  const absl::StatusOr<ProgramResult> tc = RunProgram(argv);
  EXPECT_OK(tc);
  if (!tc.ok()) return "";
  EXPECT_TRUE(tc->ok()) << tc->output;
  return tc->output;
}

// For each interface, where it is.
template <typename Work>
void OnBoth(Work work) {
  work("vA");
  const InPeer peer;
  work("vB");
}

}  // namespace

BadNetwork::BadNetwork(const std::string& what) {
  OnBoth([&](const std::string& interface) { Tc("add dev " + interface + " root netem " + what); });
}

BadNetwork::~BadNetwork() {
  OnBoth([](const std::string& interface) { Tc("del dev " + interface + " root"); });
}

int BadNetwork::lost() const {
  int lost = 0;
  OnBoth([&](const std::string& interface) {
    const std::string statistics = Tc("show dev " + interface);
    const size_t at = statistics.find("dropped ");
    if (at != std::string::npos) lost += std::atoi(statistics.c_str() + at + 8);
  });
  return lost;
}

}  // namespace rdmad::testing
