#include "daemon/base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

namespace rdmad {

void CheckFailed(const char* file, int line, const char* expression, const char* message) noexcept {
  // A plain write of a stack buffer: the heap or stdio's locks may be what is broken.
  char text[1024];
  const int wanted =
      snprintf(text, sizeof(text), "%s:%d: check failed: %s%s%s\n", file, line, expression,
               message != nullptr ? ": " : "", message != nullptr ? message : "");
  if (wanted > 0) {
    const size_t length_bytes = std::min(static_cast<size_t>(wanted), sizeof(text) - 1);
    if (write(STDERR_FILENO, text, length_bytes) < 0) {
      // Nobody reads stderr; abort says the rest.
    }
  }
  abort();
}

}  // namespace rdmad
