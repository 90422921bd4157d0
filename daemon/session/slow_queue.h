// What a session has done on another thread: one thing after the other, so that however much it
// asks for, it holds up no other session's by more than one.
//
// Thread: control. Owner: the session, which waits for all answers before it goes.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "daemon/session/session_host.h"

namespace rdmad::session {

class SlowQueue {
 public:
  explicit SlowQueue(SessionHost* host) : host_(host) {}

  // Runs `work` on another thread when what is before it is done, then `then` on this one.
  // `droppable`: once Close() was called it is not begun any more; `then` runs all the same.
  void Run(std::function<void()> work, bool droppable, std::function<void()> then) {
    queue_.push_back({std::move(work), droppable, std::move(then)});
    if (queue_.size() == 1) Start();
  }

  void Close() noexcept { closed_ = true; }

 private:
  struct Entry {
    std::function<void()> work;
    bool droppable;
    std::function<void()> then;
  };

  void Start() {
    std::function<void()> work = [] {};
    if (!closed_ || !queue_.front().droppable) work = queue_.front().work;
    host_->RunSlowly(std::move(work), [this] {
      const Entry done = std::move(queue_.front());
      queue_.pop_front();
      if (!queue_.empty()) Start();
      // Last: it may destroy this.
      done.then();
    });
  }

  SessionHost* const host_;
  std::deque<Entry> queue_;  // the first is under way
  bool closed_ = false;
};

}  // namespace rdmad::session
