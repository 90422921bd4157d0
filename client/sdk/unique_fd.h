#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rdmad::sdk {

// Owns one file descriptor and closes it. Move-only; empty holds -1. Closing keeps errno.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd < 0 ? -1 : fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset(other.Release());  // released first: assigning to itself must not close
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  // Gives the descriptor away; the caller closes it.
  [[nodiscard]] int Release() noexcept { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd < 0 ? -1 : fd);
    if (old < 0) return;
    const int saved_errno = errno;
    ::close(old);  // Linux has closed it even when it reports an error
    errno = saved_errno;
  }

 private:
  int fd_ = -1;
};

}  // namespace rdmad::sdk
