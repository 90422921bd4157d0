#pragma once

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "client/sdk/event_pipe.h"
#include "client/sdk/status_errno.h"

namespace rdmad::sdk {

// The error for a pipe that gave no record. kHangup is the session's to describe.
inline absl::Status PipeStatus(PipeResult result, const std::string& what) {
  switch (result) {
    case PipeResult::kRecord:
      return absl::OkStatus();
    case PipeResult::kWouldBlock:
      return StatusWithErrno(absl::StatusCode::kDeadlineExceeded, EAGAIN, what + ": no event pending");
    case PipeResult::kTimeout:
      return absl::DeadlineExceededError(what + ": no event in time");
    case PipeResult::kHangup:
      return absl::UnavailableError(what + ": rdmad is gone");
    case PipeResult::kError:
      break;
  }
  return ErrnoToStatus(errno, what);
}

}  // namespace rdmad::sdk
