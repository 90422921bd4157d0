// absl::Status and errno: the one place that knows both.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rdmad::sdk {

// The error of a system call, as "what: strerror". Remembers the errno, so that StatusToErrno gives it back.
absl::Status ErrnoToStatus(int error_number, const std::string& what);
// An error of our own that has an errno of its own (EAGAIN, say), for those who need it.
absl::Status StatusWithErrno(absl::StatusCode code, int error_number, const std::string& message);

// The errno that says it best: the one remembered, else by code. 0 when OK. Always positive.
int StatusToErrno(const absl::Status& status) noexcept;

}  // namespace rdmad::sdk
