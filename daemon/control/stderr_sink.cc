#include "daemon/control/stderr_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "spdlog/details/log_msg.h"

namespace rdmad::control {
namespace {

// The same terminal or pipe, opened once more; none for anything else.
UniqueFd NonBlocking(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)))
    return UniqueFd();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

StderrSink::StderrSink(int fd) : own_(NonBlocking(fd)), fd_(own_ ? own_.get() : fd) {}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  const auto formatted = [this](const spdlog::details::log_msg& what) {
    spdlog::memory_buf_t line;
    formatter_->format(what, line);
    return std::string(line.data(), line.size());
  };
  if (lost_ != 0) {
    const std::string text = std::to_string(lost_) + " lines of this log were lost: nobody read it";
    spdlog::details::log_msg notice(message.time, {}, "control", spdlog::level::warn, text);
    if (!Write(formatted(notice))) {
      ++lost_;
      return;
    }
    lost_ = 0;
  }
  if (!Write(formatted(message))) ++lost_;
}

bool StderrSink::Write(std::string line) {
  rest_.erase(0, WriteSome(rest_.data(), rest_.size()));
  if (!rest_.empty()) return false;
  const size_t taken = WriteSome(line.data(), line.size());
  if (taken == 0) return false;
  rest_ = line.substr(taken);
  return true;
}

size_t StderrSink::WriteSome(const char* bytes, size_t count) const {
  size_t taken = 0;
  while (taken < count) {
    ssize_t written = send(fd_, bytes + taken, count - taken, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0 && errno == ENOTSOCK) {
      // A file, or a pipe that could not be opened once more: if it can be written to, it takes
      // this much without waiting. (Made non-blocking, it would be so for whoever else has it.)
      pollfd ready{fd_, POLLOUT, 0};
      if (poll(&ready, 1, 0) != 1) break;
      written = write(fd_, bytes + taken, std::min<size_t>(count - taken, PIPE_BUF));
    }
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EAGAIN) return count;  // a log that is gone loses nothing more
    if (written <= 0) break;
    taken += static_cast<size_t>(written);
  }
  return taken;
}

}  // namespace rdmad::control
