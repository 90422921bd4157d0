// Descriptors that libraries opened for us, made non-blocking.
//
// Thread: any.
#pragma once

#include <fcntl.h>

namespace rdmad::verbs {

// False, with errno, if the kernel refuses. The flag belongs to the open file, so it counts for
// whoever shares it.
[[nodiscard]] inline bool SetNonBlocking(int fd) noexcept {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace rdmad::verbs
