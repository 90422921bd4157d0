// A completion queue at an engine (proto/shm/completion_queue.h): the sink that a device completes
// into.
//
// The queue's own index is private; the client's `head` is read only when the queue seems full. An
// entry that was not polled is never overwritten: no room left, or a head that makes no sense,
// breaks the CQ. A broken CQ drops what comes, its QPs go to the error state at the end of the
// turn, and control hears of it (OnCqOverrun).
//
// The client arms, then polls once more; the port publishes `tail`, then looks at `armed`. All four
// are sequentially consistent, so either the client sees the entry or the port sees the arming.
#pragma once

#include <cstdint>

#include "daemon/engine/channel_port.h"
#include "daemon/engine/engine_context.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_port.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::engine {

struct CqUserTag;

// A QP's use of a CQ.
struct CqUser : ListHook<CqUserTag> {
  ShmQueuePairPort* port = nullptr;
};

class ShmCqPort final : public CqPort, public ListHook<OverrunTag> {
 public:
  ShmCqPort(EngineContext& context, const CqPortInit& init);

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  void OnCompletion(const device::Wc& wc) noexcept override;
  // As if it had overrun.
  void OnError() noexcept override;

  // QPs that complete into this CQ; they leave (Unlink) before it is deactivated.
  void AddUser(CqUser& user) noexcept { users_.PushBack(user); }

  bool broken() const noexcept { return broken_; }
  // Moves the QPs of a broken CQ to the error state and reports it. Not from inside a device.
  void FailUsers(device::TimeNs now) noexcept;

 private:
  // Whether there is room for one more entry.
  bool HasRoom() noexcept;
  void Break() noexcept;
  void Count(const device::Wc& wc) noexcept;
  void PublishAndNotify(bool solicited) noexcept;

  EngineContext& context_;
  ShmSessionPort& session_;
  ShmChannelPort* const channel_;
  shm::CqHeader* const header_;
  std::byte* const entries_;
  const uint32_t mask_;
  const uint32_t capacity_;
  uint32_t tail_ = 0;       // next entry to fill
  uint32_t seen_head_ = 0;  // `head` as last read
  bool broken_ = false;
  ChannelMember channel_member_;
  EventSource overrun_event_;
  IntrusiveList<CqUser, CqUserTag> users_;
};

}  // namespace rdmad::engine
