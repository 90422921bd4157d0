// `rdmactl bench`: what to measure, between whom, and how to print it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/rdmactl/bench/bench.h"
#include "rdmad/client.h"

namespace rdmad::rdmactl {

struct BenchCommand {
  AttachOptions attach;
  std::vector<BenchOptions> runs;
  std::string listen;   // serve others here
  std::string connect;  // measure with the rdmactl that listens there
  std::string address;  // of the device to use when both sides are here; empty: the first
  bool one_process = false;
  bool once = false;
  bool json = false;
};

// Without `listen` and `connect`, both sides are here, in two processes or two threads, each a session of its own.
absl::Status RunBench(const BenchCommand& command);

}  // namespace rdmad::rdmactl
