// rdmactl bench: latency, bandwidth and message rate between two sessions.
//
// The measuring side (RunClient) connects and says in the private data of its request what it wants to measure; the
// other side (Serve) posts receives or opens memory for it and answers. Verbs objects are used directly, so that what is
// measured is rdmad and little else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/rdmad.h"

namespace rdmad::rdmactl {

enum class BenchMode : uint8_t { kSend = 0, kWrite = 1, kRead = 2 };

enum class BenchMetric : uint8_t {
  kLatency = 0,    // one at a time; with kSend there and back again
  kBandwidth = 1,  // a window of large operations
  kRate = 2,       // a window of small ones, posted in batches
};

struct BenchOptions {
  BenchMode mode = BenchMode::kSend;
  BenchMetric metric = BenchMetric::kLatency;
  uint32_t size_bytes = 64;
  uint32_t depth = 64;  // operations under way, kBandwidth and kRate
  // How many buffers of the measuring side they use in turn; 0: one each. Other tools measure with one, which stays in
  // the processor's cache.
  uint32_t buffers = 0;
  WaitStyle wait = WaitStyle::kBlocking;
  absl::Duration duration = absl::Seconds(2);

  uint32_t window_buffers() const { return buffers == 0 ? depth : std::min(buffers, depth); }
};

struct BenchResult {
  BenchOptions options;
  uint64_t operations = 0;
  double seconds = 0;
  // kLatency, in microseconds.
  double min_us = 0;
  double p50_us = 0;
  double p90_us = 0;
  double p99_us = 0;
  double p999_us = 0;
  double max_us = 0;
  double mean_us = 0;

  double per_second() const { return seconds > 0 ? static_cast<double>(operations) / seconds : 0; }
  double mbytes_per_second() const { return per_second() * options.size_bytes / 1e6; }
};

const char* BenchModeName(BenchMode mode);
const char* BenchMetricName(BenchMetric metric);

// Errors: those of connecting; InvalidArgument (a size that the device does not take).
absl::StatusOr<BenchResult> RunBenchClient(const Client& client, const Address& peer, const BenchOptions& options);

// Accepts measurements, one after the other, until an error. `on_listening` is told the address once it listens.
// `once`: returns OK after the first.
absl::Status ServeBench(const Client& client, const Address& address, bool once,
                        const std::function<void(const Address&)>& on_listening);

}  // namespace rdmad::rdmactl
