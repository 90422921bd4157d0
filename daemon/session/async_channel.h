// The daemon's end of a session's async channel: a pipe of shm::AsyncEvent records, never waited
// for.
//
// When the pipe is full, events wait in a bounded queue, in order, until it can be written again.
// An event that waits there already moves to the end instead of being queued twice: a port that
// goes up and down for months must not fill the queue of a client that does not care, and the last
// thing said of it must be the truth. What waits of an object goes with the object, so the queue is
// bounded by what a session may own: one that runs over all the same ends.
//
// Thread: control. Owner: Session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "daemon/base/unique_fd.h"
#include "daemon/session/session_host.h"
#include "proto/shm/event.h"

namespace rdmad::session {

class AsyncChannel {
 public:
  // Records beyond those in the pipe (4096 in the usual 64 KiB).
  static constexpr size_t kDefaultQueueLimit = 65536;

  // Takes the write end of a pipe and makes it non-blocking. `on_overflow` is called once, from
  // inside Send().
  AsyncChannel(UniqueFd write_end, SessionHost* host, std::function<void()> on_overflow,
               size_t queue_limit = kDefaultQueueLimit);
  AsyncChannel(const AsyncChannel&) = delete;
  AsyncChannel& operator=(const AsyncChannel&) = delete;

  void Send(const shm::AsyncEvent& event);
  // The object is gone: what waits here of it is not told any more, as with ibv_destroy_qp().
  void Drop(uint64_t handle);
  [[nodiscard]] size_t queued() const noexcept { return queue_.size(); }

 private:
  bool Write(const shm::AsyncEvent& event) noexcept;
  void OnWritable();
  void Forget();

  const UniqueFd fd_;
  SessionHost* const host_;
  std::function<void()> on_overflow_;
  const size_t queue_limit_;
  using Key = std::pair<uint64_t, uint32_t>;  // handle and type
  std::list<shm::AsyncEvent> queue_;
  std::map<Key, std::list<shm::AsyncEvent>::iterator> queued_;
  std::unique_ptr<FdWatch> watch_;
  bool broken_ = false;  // the client closed its end, or the queue ran over: everything is dropped
};

}  // namespace rdmad::session
