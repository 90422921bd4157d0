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
  const Key key(event.handle, event.type);
  if (const auto waiting = queued_.find(key); waiting != queued_.end()) {
    queue_.splice(queue_.end(), queue_, waiting->second);
    return;
  }
  if (queue_.size() >= queue_limit_) {
    broken_ = true;
    Forget();
    watch_.reset();
    on_overflow_();
    return;
  }
  queued_[key] = queue_.insert(queue_.end(), event);
  if (watch_ == nullptr) watch_ = host_->WatchWritable(fd_.get(), [this] { OnWritable(); });
}

void AsyncChannel::Drop(uint64_t handle) {
  const auto first = queued_.lower_bound({handle, 0});
  auto last = first;
  for (; last != queued_.end() && last->first.first == handle; ++last) queue_.erase(last->second);
  queued_.erase(first, last);
  if (queue_.empty()) watch_.reset();
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
  while (!queue_.empty() && Write(queue_.front())) {
    queued_.erase({queue_.front().handle, queue_.front().type});
    queue_.pop_front();
  }
  if (broken_) Forget();
  if (queue_.empty()) watch_.reset();
}

void AsyncChannel::Forget() {
  queue_.clear();
  queued_.clear();
}

}  // namespace rdmad::session
