// What a daemon's devices have counted, as operators see it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "tests/support/daemon_process.h"

namespace rdmad::testing {

// The counters of all devices of a daemon, summed by name, at one moment.
class Counters {
 public:
  // Errors: those of attaching and of the call.
  static absl::StatusOr<Counters> Of(const DaemonProcess& daemon);

  // Ends the test program if there is no such counter: its name has changed.
  [[nodiscard]] uint64_t Get(const std::string& name) const;

 private:
  std::map<std::string, uint64_t> values_;
};

}  // namespace rdmad::testing
