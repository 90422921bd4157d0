#include "daemon/session/async_channel.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rdmad::session {

AsyncChannel::AsyncChannel(UniqueFd write_end, SessionHost* host, std::function<void()> on_overflow,
                           size_t queue_limit)
    : fd_(std::move(write_end)),
      host_(host),
      on_overflow_(std::move(on_overflow)),
      queue_limit_(queue_limit) {
  fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
}

void AsyncChannel::Send(const shm::AsyncEvent& event) {
  if (broken_) return;
  if (queue_.empty() && Write(event)) return;
  if (queue_.size() >= queue_limit_) {
    broken_ = true;
    queue_.clear();
    watch_.reset();
    on_overflow_();
    return;
  }
  queue_.push_back(event);
  if (watch_ == nullptr) watch_ = host_->WatchWritable(fd_.get(), [this] { OnWritable(); });
}

bool AsyncChannel::Write(const shm::AsyncEvent& event) noexcept {
  ssize_t written = 0;
  do {
    written = write(fd_.get(), &event, sizeof(event));
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(sizeof(event))) return true;
  // A record is below PIPE_BUF, so it is never written in part.
  if (errno == EAGAIN) return false;
  broken_ = true;
  return true;
}

void AsyncChannel::OnWritable() {
  while (!queue_.empty() && Write(queue_.front())) queue_.pop_front();
  if (broken_) queue_.clear();
  if (queue_.empty()) watch_.reset();
}

}  // namespace rdmad::session
