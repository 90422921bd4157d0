#pragma once

#include "absl/status/status.h"

namespace rdmad::rdmactl {

// What the process ends with; in the help text.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kNoDaemon = 3,
  kNotAllowed = 4,
};

inline ExitCode ExitCodeOf(const absl::Status& status) noexcept {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kUnavailable:
      return kNoDaemon;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kNotAllowed;
    default:
      return kFailed;
  }
}

}  // namespace rdmad::rdmactl
