#include "client/sdk/event_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "client/sdk/poll_wait.h"

namespace rdmad::sdk {

void EventPipe::SetInternal() noexcept {
  internal_ = ::fcntl(fd(), F_SETFL, O_RDONLY | O_NONBLOCK) == 0;
}

PipeResult EventPipe::WaitFor(Deadline deadline) const noexcept {
  if (!internal_) {
    const int flags = ::fcntl(fd(), F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) != 0) deadline = Deadline::Immediate();
    if (deadline.immediate()) {
      pollfd poll_fd{fd(), POLLIN, 0};
      return WaitAny({&poll_fd, 1}, deadline) == WaitResult::kReadable ? PipeResult::kRecord : PipeResult::kWouldBlock;
    }
  }
  switch (WaitReadable(fd(), deadline)) {
    case WaitResult::kReadable:
      return PipeResult::kRecord;
    case WaitResult::kTimeout:
      return PipeResult::kTimeout;
    case WaitResult::kError:
      break;
  }
  return PipeResult::kError;
}

PipeResult EventPipe::TryRead(void* record, size_t record_bytes) noexcept {
  const std::lock_guard lock(read_mutex_);
  if (!internal_) {
    // The descriptor may block: another thread can have taken what woke this one.
    pollfd poll_fd{fd(), POLLIN, 0};
    if (WaitAny({&poll_fd, 1}, Deadline::Immediate()) != WaitResult::kReadable) return PipeResult::kWouldBlock;
  }
  ssize_t count;
  do {
    count = ::read(fd(), record, record_bytes);
  } while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(record_bytes)) return PipeResult::kRecord;
  if (count == 0) return PipeResult::kHangup;
  if (count < 0 && errno == EAGAIN) return PipeResult::kWouldBlock;
  if (count > 0) errno = EIO;  // a torn record
  return PipeResult::kError;
}

PipeResult EventPipe::Read(void* record, size_t record_bytes, Deadline deadline) noexcept {
  if (internal_) {
    // Most often something is there.
    const PipeResult result = TryRead(record, record_bytes);
    if (result != PipeResult::kWouldBlock || deadline.immediate()) return result;
  }
  while (true) {
    const PipeResult waited = WaitFor(deadline);
    if (waited != PipeResult::kRecord) return waited;
    const PipeResult result = TryRead(record, record_bytes);
    if (result != PipeResult::kWouldBlock) return result;
  }
}

}  // namespace rdmad::sdk
