// The read end of a notification pipe (proto/shm/event.h): fixed records, one per read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "client/sdk/deadline.h"
#include "client/sdk/unique_fd.h"

namespace rdmad::sdk {

enum class PipeResult : uint8_t {
  kRecord,
  kWouldBlock,  // the descriptor is O_NONBLOCK, and nothing is there
  kTimeout,
  kHangup,  // the daemon is gone, or has ended the session
  kError,   // see errno
};

// The descriptor's O_NONBLOCK flag belongs to the application: it may be changed at any time and decides whether Read
// waits. Thread: any.
class EventPipe {
 public:
  explicit EventPipe(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  int fd() const noexcept { return fd_.get(); }
  // The daemon writes, we read: for descriptors that no application sees, Read need not ask for the flag.
  void SetInternal() noexcept;

  // Waits for something to read, without reading: kRecord means that it is worth a try.
  PipeResult WaitFor(Deadline deadline) const noexcept;
  // Reads one record if one is there. Never blocks if all other readers go through this object.
  PipeResult TryRead(void* record, size_t record_bytes) noexcept;
  // Both, until there is a record.
  PipeResult Read(void* record, size_t record_bytes, Deadline deadline) noexcept;

 private:
  const UniqueFd fd_;
  bool internal_ = false;
  std::mutex read_mutex_;  // from looking to reading
};

}  // namespace rdmad::sdk
