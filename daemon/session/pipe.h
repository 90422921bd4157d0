// Pipes between daemon and client.
//
// Thread: any.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::session {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

// Both ends block and close on exec; the two sides then set their own flags, which they do not
// share. Errors: ResourceExhausted (descriptors: says whose limit).
inline absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        errno == EMFILE ? "pipe: the daemon has no descriptor left; raise its limit of open files"
                        : "pipe: the host has no descriptor left");
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace rdmad::session
