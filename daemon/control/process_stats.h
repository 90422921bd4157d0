// What the kernel says of this process; for metrics.
//
// Thread: any.
#pragma once

#include <cstdint>

namespace rdmad::control {

struct ProcessStats {
  double cpu_seconds = 0;
  double start_time_seconds = 0;  // since 1970
  uint64_t virtual_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;
};

// Fields that cannot be read stay 0. Source: proc(5), /proc/pid/stat.
ProcessStats ReadProcessStats();

}  // namespace rdmad::control
