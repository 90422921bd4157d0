// The daemon's end of an rdma_cm event channel: a pipe into which events go as whole shm::CmEvent
// records.
//
// The client holds the read end. A record is at most PIPE_BUF, so a write is whole or fails with
// EAGAIN; nothing here ever blocks. When the pipe is full, events wait in a queue, in order, until
// OnWritable(). It has room for what ids without number may say before their application looks: the
// bound grows with the ids, which are under quota. A client that lets even that run over has
// stopped reading for good: the host is told and closes the session. The waiting events of one id can be taken back
// out, which is how destroying and migrating an id work.
//
// Main ignores SIGPIPE: a closed read end shows as EPIPE, after which events are dropped silently.
// Thread: control. Owner: the session; it outlives the ids that use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "proto/shm/event.h"

namespace rdmad::cm {

class EventChannel;

// What a channel asks of the session. Called from inside Send() and OnWritable(): note it and act
// later; destroy neither the channel nor an id there.
class EventChannelHost {
 public:
  virtual ~EventChannelHost() = default;
  // wants_write() has become true: watch fd() for writability and call OnWritable() until it is
  // false again.
  virtual void OnChannelBlocked(EventChannel& channel) = 0;
  // The queue ran over: the session must be closed. Said once; the channel drops everything from
  // then on.
  virtual void OnChannelOverflow(EventChannel& channel) = 0;
};

// An id as its channel knows it.
class EventChannelUser {
 public:
  virtual ~EventChannelUser() = default;
  // One of its events has gone into the pipe, so the client will acknowledge it.
  virtual void OnEventWritten() noexcept = 0;
};

class EventChannel {
 public:
  static constexpr size_t kDefaultQueueLimit = 4096;  // records, 1.4 MiB
  // An id that nobody looks at says at most: established, disconnected, its address has moved, its
  // device has gone, its wait is over; or a few groups' worth.
  static constexpr size_t kQueueLimitPerUser = 8;

  // Takes the write end of a pipe and makes it non-blocking. `host` outlives the channel.
  EventChannel(UniqueFd write_end, EventChannelHost* host, size_t queue_limit = kDefaultQueueLimit);
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;
  ~EventChannel();

  // Writes the record, or queues it behind those that wait.
  void Send(const shm::CmEvent& event);

  // Writes what waits, as far as the pipe takes it.
  void OnWritable();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool wants_write() const noexcept { return !queue_.empty(); }

  // Takes the waiting events that count for the id out of the queue, in order.
  std::vector<shm::CmEvent> TakeQueued(uint64_t id_handle);

  // Who counts the events of `id_handle`. The client may destroy a channel only when it has no
  // users.
  void AddUser(uint64_t id_handle, EventChannelUser* user);
  void RemoveUser(uint64_t id_handle);
  [[nodiscard]] size_t user_count() const noexcept { return users_.size(); }

  [[nodiscard]] size_t queued() const noexcept { return queue_.size(); }
  // The client has closed its end.
  [[nodiscard]] bool broken() const noexcept { return state_ == State::kBroken; }

  // The id for which the client acknowledges an event: with a connect request that is the listener,
  // as in librdmacm.
  static uint64_t OwnerHandle(const shm::CmEvent& event) noexcept;

 private:
  enum class State : uint8_t { kOpen, kBroken, kOverflowed };

  // False: the pipe is full. A broken pipe takes everything.
  bool Write(const shm::CmEvent& event);
  void Stop(State why);

  UniqueFd fd_;
  EventChannelHost* const host_;
  const size_t queue_limit_;
  State state_ = State::kOpen;
  std::deque<shm::CmEvent> queue_;
  std::unordered_map<uint64_t, EventChannelUser*> users_;
};

}  // namespace rdmad::cm
