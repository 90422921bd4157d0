#include "daemon/engine/channel_port.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "daemon/base/check.h"
#include "proto/shm/event.h"

namespace rdmad::engine {

ShmChannelPort::ShmChannelPort(EngineContext& context, ChannelPortInit init)
    : context_(context),
      counters_(static_cast<ShmSessionPort*>(init.session)->counters()),
      write_fd_(std::move(init.write_fd)) {
  RD_CHECK(write_fd_.valid());
  RD_CHECK(::fcntl(write_fd_.get(), F_SETFL, O_WRONLY | O_NONBLOCK) == 0);
}

void ShmChannelPort::Activate(device::TimeNs) noexcept {}

void ShmChannelPort::Deactivate(device::TimeNs) noexcept {
  RD_CHECK(waiting_.empty(), "a channel's CQs go before it");
  StopAwaiting();
}

void ShmChannelPort::Notify(ChannelMember& member) noexcept {
  if (!member.linked()) {  // else it has an event to come already
    // Not past others that wait.
    const WriteResult result = waiting_.empty() ? Write(member.cq_handle) : WriteResult::kFull;
    if (result != WriteResult::kFull) return;
    counters_.channel_full.Add(1);
    waiting_.PushBack(member);
  }
  if (!awaiting_room_) AwaitRoom();
}

ShmChannelPort::WriteResult ShmChannelPort::Write(uint64_t cq_handle) noexcept {
  const shm::CompletionEvent event{cq_handle};
  ssize_t written;
  do {
    written = ::write(write_fd_.get(), &event, sizeof(event));  // all or nothing: below PIPE_BUF
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(sizeof(event))) {
    counters_.channel_events.Add(1);
    return WriteResult::kWritten;
  }
  return errno == EAGAIN ? WriteResult::kFull : WriteResult::kGone;
}

void ShmChannelPort::OnReady(uint32_t) noexcept {
  while (ChannelMember* const member = waiting_.front()) {
    if (Write(member->cq_handle) == WriteResult::kFull) return;
    member->Unlink();  // said, or there is nobody to say it to
  }
  StopAwaiting();
}

void ShmChannelPort::AwaitRoom() noexcept {
  // Refused by the kernel (out of memory): the next Notify() tries again.
  awaiting_room_ = context_.waits.Add(write_fd_.get(), EPOLLOUT, this);
  if (awaiting_room_) ++context_.blocked_channels;
}

void ShmChannelPort::StopAwaiting() noexcept {
  if (!std::exchange(awaiting_room_, false)) return;
  context_.waits.Remove(write_fd_.get());
  --context_.blocked_channels;
}

}  // namespace rdmad::engine
