#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rdmad {

// Owns one file descriptor and closes it. Move-only; empty holds -1. Closing keeps errno, so that a
// descriptor that goes out of scope on an error path does not hide the error. Thread: any one at a
// time.
class UniqueFd {
 public:
  UniqueFd() = default;
  // Takes `fd` over; a negative number is empty, so that the result of open(2) may be passed
  // unchecked.
  explicit UniqueFd(int fd) noexcept : fd_(fd < 0 ? -1 : fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    // Released first: assigning to itself must not close.
    Reset(other.Release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { Reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  explicit operator bool() const noexcept { return valid(); }

  // Gives the descriptor away; the caller closes it.
  [[nodiscard]] int Release() noexcept { return std::exchange(fd_, -1); }

  // Closes what is held and takes `fd` over.
  void Reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd < 0 ? -1 : fd);
    if (old < 0) return;
    // Linux has closed the descriptor even when close(2) reports an error; trying again could close
    // another's.
    const int saved_errno = errno;
    ::close(old);
    errno = saved_errno;
  }

 private:
  int fd_ = -1;
};

}  // namespace rdmad
