// Completion channels and completion queues, client side.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/deadline.h"
#include "client/sdk/event_pipe.h"
#include "client/sdk/ring/cq_reader.h"
#include "client/sdk/session.h"
#include "client/sdk/spin.h"
#include "rdmad/verbs.h"

namespace rdmad::sdk {

class CompletionQueueState;
class QueuePairState;
class SrqState;

// Thread: any. Owner: handles and the CQs that report to it.
class CompletionChannelState {
 public:
  static absl::StatusOr<std::shared_ptr<CompletionChannelState>> Create(const std::shared_ptr<Session>& session);
  ~CompletionChannelState();
  CompletionChannelState(const CompletionChannelState&) = delete;
  CompletionChannelState& operator=(const CompletionChannelState&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  uint64_t handle() const noexcept { return handle_; }
  EventPipe& pipe() noexcept { return pipe_; }

  absl::StatusOr<std::shared_ptr<CompletionQueueState>> GetEvent(Deadline deadline);

  void AddCq(const std::shared_ptr<CompletionQueueState>& cq);
  void RemoveCq(uint64_t cq_handle) noexcept;

 private:
  CompletionChannelState(std::shared_ptr<Session> session, uint64_t handle, UniqueFd fd) noexcept;
  // After the daemon's end: the next CQ that waits for an event, disarmed.
  std::shared_ptr<CompletionQueueState> TakeArmed();

  const std::shared_ptr<Session> session_;
  const uint64_t handle_;
  EventPipe pipe_;
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<CompletionQueueState>> cqs_;
};

// Thread: any; Poll under the CQ's own lock. Owner: handles and the QPs that complete into it.
class CompletionQueueState : public std::enable_shared_from_this<CompletionQueueState> {
 public:
  static absl::StatusOr<std::shared_ptr<CompletionQueueState>> Create(
      const std::shared_ptr<Session>& session, uint32_t device_index, uint32_t depth,
      const std::shared_ptr<CompletionChannelState>& channel, void* context, uint32_t comp_vector = 0);
  ~CompletionQueueState();
  CompletionQueueState(const CompletionQueueState&) = delete;
  CompletionQueueState& operator=(const CompletionQueueState&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  const std::shared_ptr<CompletionChannelState>& channel() const noexcept { return channel_; }
  uint64_t handle() const noexcept { return handle_; }
  uint32_t depth() const noexcept { return depth_; }
  void* context() const noexcept { return context_; }
  uint32_t comp_vector() const noexcept { return comp_vector_; }
  // The engine that serves its QPs.
  const Lane& lane() const noexcept { return lane_; }

  size_t Poll(std::span<Wc> out) noexcept;
  absl::StatusOr<size_t> Wait(std::span<Wc> out, Deadline deadline, WaitStyle style);
  void Arm(bool solicited_only) noexcept { reader_.Arm(solicited_only); }
  // Takes the arming back; true if it was there.
  bool Disarm() noexcept;

  void CountEvent() noexcept;
  void AckEvents(uint32_t count) noexcept;

  // The QPs that complete here. Detach returns when no Poll can be using the QP any more.
  void Attach(QueuePairState* qp);
  void Detach(QueuePairState* qp) noexcept;
  // Drops what is left of a QP that was reset or is gone; `srq`, which may be null, gets its places back.
  void Purge(uint32_t cookie, SrqState* srq) noexcept;

  absl::Status Destroy();

 private:
  CompletionQueueState(std::shared_ptr<Session> session, std::shared_ptr<CompletionChannelState> channel,
                       uint64_t handle, uint32_t depth, MappedQueue ring, void* context, uint32_t comp_vector,
                       const Lane& lane) noexcept;
  size_t PollRing(std::span<Wc> out) noexcept;
  // After the daemon's end: what was outstanding in the QPs.
  size_t PollFlushed(std::span<Wc> out) noexcept;

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<CompletionChannelState> channel_;
  const uint64_t handle_;
  const uint32_t depth_;
  shm::CqHeader* const header_;
  void* const context_;
  const uint32_t comp_vector_;
  const Lane& lane_;

  std::mutex mutex_;
  CqReader reader_;
  std::vector<QueuePairState*> qps_;
  bool destroyed_ = false;
  bool flushing_ = false;  // the daemon has gone: the ring is not looked at any more

  std::mutex event_mutex_;
  std::condition_variable events_acked_changed_;
  uint32_t events_ = 0;
  uint32_t events_acked_ = 0;

  SpinPolicy spin_policy_;  // of Wait
};

}  // namespace rdmad::sdk
