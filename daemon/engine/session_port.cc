#include "daemon/engine/session_port.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "daemon/base/check.h"

namespace rdmad::engine {

ShmSessionPort::ShmSessionPort(EngineContext& context, SessionPortInit init)
    : context_(context), control_(init.control), wake_fd_(std::move(init.wake_fd)) {
  RD_CHECK(control_ != nullptr && wake_fd_.valid());
  // The pipe's two ends have flags of their own: the client cannot undo this.
  RD_CHECK(::fcntl(wake_fd_.get(), F_SETFL, O_RDONLY | O_NONBLOCK) == 0);
  corrupt_event_.kind = EngineEvent::Kind::kSessionCorrupt;
  corrupt_event_.token = init.session_token;
}

void ShmSessionPort::Activate(device::TimeNs) noexcept {
  context_.sessions.PushBack(*this);
  if (!context_.waits.Add(wake_fd_.get(), EPOLLIN, this)) {
    // Not the client's fault, but its doorbells would not be heard: better no session than that.
    MarkCorrupt("engine: epoll refuses the wake pipe");
  }
}

void ShmSessionPort::Deactivate(device::TimeNs) noexcept {
  context_.waits.Remove(wake_fd_.get());
  context_.events.Remove(corrupt_event_);
  Unlink();
}

uint32_t ShmSessionPort::CollectDoorbells() noexcept {
  uint32_t rung = 0;
  for (uint32_t i = 0; i < used_summary_words(); ++i) {
    std::atomic<uint64_t>& summary = control_->summary[i];
    // Relaxed: a bit that is missed here is seen in a later turn, or by AnyDoorbell().
    if (summary.load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = summary.exchange(0, std::memory_order_seq_cst);  // pairs with RingDoorbell()
    for (; bits != 0; bits &= bits - 1) {
      rung += CollectWord(i * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  if (rung != 0) counters_.doorbells.Add(rung);
  return rung;
}

uint32_t ShmSessionPort::CollectWord(uint32_t word) noexcept {
  // The exchange also acquires the tails that were published before the bell was rung.
  uint64_t bits = control_->words[word].exchange(0, std::memory_order_seq_cst);
  uint32_t rung = 0;
  for (; bits != 0; bits &= bits - 1) {
    WorkSource* const source = doorbells_.Find(word, static_cast<uint32_t>(std::countr_zero(bits)));
    if (source == nullptr) continue;
    ++rung;
    if (!source->linked()) context_.active.PushBack(*source);
  }
  return rung;
}

bool ShmSessionPort::AnyDoorbell() const noexcept {
  for (uint32_t i = 0; i < used_summary_words(); ++i) {
    if (control_->summary[i].load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

void ShmSessionPort::MarkCorrupt(const char* what) noexcept {
  if (std::exchange(corrupt_, true)) return;
  corrupt_event_.what = what;
  context_.events.Report(corrupt_event_);
}

void ShmSessionPort::OnReady(uint32_t events) noexcept {
  // Bounded: what a client puts in beyond this is read after the next wait.
  char bytes[256];
  const ssize_t count = ::read(wake_fd_.get(), bytes, sizeof(bytes));
  const bool nothing_to_come = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
  // The client has closed its end, which would end every further wait at once. That the session
  // ends is decided elsewhere.
  if (nothing_to_come || (count < 0 && (events & (EPOLLHUP | EPOLLERR)) != 0)) {
    context_.waits.Remove(wake_fd_.get());
  }
}

}  // namespace rdmad::engine
