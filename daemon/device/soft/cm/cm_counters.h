// What the soft device's connection manager counts. Thread: control.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/device/device.h"

namespace rdmad::soft {

struct CmCounters {
  uint64_t mads_received = 0;
  uint64_t mads_sent = 0;
  uint64_t mads_local = 0;
  uint64_t mads_malformed = 0;
  uint64_t mads_unmatched = 0;
  uint64_t send_failures = 0;
  uint64_t retries = 0;
  uint64_t repetitions = 0;
  uint64_t requests = 0;
  uint64_t requests_refused = 0;
  uint64_t requests_over_backlog = 0;
  uint64_t requests_over_limit = 0;
  uint64_t established = 0;
  uint64_t established_by_data = 0;
  uint64_t timeouts = 0;
  uint64_t stale = 0;
};

// With name, unit and help text.
[[nodiscard]] std::vector<device::CounterValue> Describe(const CmCounters& counters);

}  // namespace rdmad::soft
