// The live form of SessionCounters (port.h): written by the engine, read by anyone.
#pragma once

#include <array>

#include "daemon/engine/port.h"
#include "daemon/engine/relaxed_counter.h"

namespace rdmad::engine {

struct LiveSessionCounters {
  RelaxedCounter send_wrs;
  RelaxedCounter recv_wrs;
  RelaxedCounter send_bytes;
  RelaxedCounter recv_bytes;
  RelaxedCounter completions_dropped;
  RelaxedCounter malformed_wrs;
  RelaxedCounter corrupt_rings;
  RelaxedCounter doorbells;
  RelaxedCounter channel_events;
  RelaxedCounter channel_full;
  std::array<RelaxedCounter, kWcStatusCount> completions_by_status;

  SessionCounters Snapshot() const noexcept {
    SessionCounters counters;
    counters.send_wrs = send_wrs.Get();
    counters.recv_wrs = recv_wrs.Get();
    counters.send_bytes = send_bytes.Get();
    counters.recv_bytes = recv_bytes.Get();
    counters.completions_dropped = completions_dropped.Get();
    counters.malformed_wrs = malformed_wrs.Get();
    counters.corrupt_rings = corrupt_rings.Get();
    counters.doorbells = doorbells.Get();
    counters.channel_events = channel_events.Get();
    counters.channel_full = channel_full.Get();
    for (size_t status = 0; status < kWcStatusCount; ++status) {
      const uint64_t count = completions_by_status[status].Get();
      counters.completions_by_status[status] = count;
      counters.completions += count;
      if (status != 0) counters.completion_errors += count;
    }
    return counters;
  }
};

}  // namespace rdmad::engine
