#include "daemon/cm/event_channel.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "daemon/base/check.h"

namespace rdmad::cm {

static_assert(sizeof(shm::CmEvent) <= PIPE_BUF, "a write to the pipe is whole or nothing");

EventChannel::EventChannel(UniqueFd write_end, EventChannelHost* host, size_t queue_limit)
    : fd_(std::move(write_end)), host_(host), queue_limit_(queue_limit) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  RD_CHECK(flags >= 0 && ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) == 0,
           "an event channel is given an open pipe");
}

EventChannel::~EventChannel() {
  RD_CHECK(users_.empty(), "ids are destroyed before their channel");
}

uint64_t EventChannel::OwnerHandle(const shm::CmEvent& event) noexcept {
  return event.listen_handle != 0 ? event.listen_handle : event.id_handle;
}

void EventChannel::Send(const shm::CmEvent& event) {
  if (state_ != State::kOpen) return;
  if (queue_.empty() && Write(event)) return;
  if (queue_.size() >= queue_limit_ + kQueueLimitPerUser * users_.size()) {
    Stop(State::kOverflowed);
    host_->OnChannelOverflow(*this);
    return;
  }
  queue_.push_back(event);
  if (queue_.size() == 1) host_->OnChannelBlocked(*this);
}

void EventChannel::OnWritable() {
  while (!queue_.empty() && Write(queue_.front())) {
    if (state_ != State::kOpen) return;  // the queue is gone
    queue_.pop_front();
  }
}

bool EventChannel::Write(const shm::CmEvent& event) {
  ssize_t written;
  do {
    written = ::write(fd_.get(), &event, sizeof(event));
  } while (written < 0 && errno == EINTR);
  if (written < 0 && errno == EAGAIN) return false;
  if (written != static_cast<ssize_t>(sizeof(event))) {
    Stop(State::kBroken);
    return true;
  }
  const auto user = users_.find(OwnerHandle(event));
  if (user != users_.end()) user->second->OnEventWritten();
  return true;
}

void EventChannel::Stop(State why) {
  state_ = why;
  queue_.clear();
}

std::vector<shm::CmEvent> EventChannel::TakeQueued(uint64_t id_handle) {
  std::vector<shm::CmEvent> taken;
  std::erase_if(queue_, [&](const shm::CmEvent& event) {
    if (OwnerHandle(event) != id_handle) return false;
    taken.push_back(event);
    return true;
  });
  return taken;
}

void EventChannel::AddUser(uint64_t id_handle, EventChannelUser* user) {
  const bool is_new = users_.emplace(id_handle, user).second;
  RD_CHECK(is_new, "handles are unique");
}

void EventChannel::RemoveUser(uint64_t id_handle) {
  users_.erase(id_handle);
}

}  // namespace rdmad::cm
