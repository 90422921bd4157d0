// A completion channel at an engine: the write end of a pipe that several CQs may share.
//
// The engine never waits for a client: when the pipe is full, the CQ waits in a list and the kernel
// tells when there is room again. A CQ that is notified again while it waits has one event to come,
// not two.
#pragma once

#include "daemon/engine/engine_context.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_port.h"

namespace rdmad::engine {

struct ChannelWaitTag;

// A CQ as its channel sees it.
struct ChannelMember : ListHook<ChannelWaitTag> {
  uint64_t cq_handle = 0;
};

class ShmChannelPort final : public ChannelPort, public Waitable {
 public:
  ShmChannelPort(EngineContext& context, ChannelPortInit init);

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;

  // Writes a CompletionEvent for the CQ, now or as soon as there is room.
  void Notify(ChannelMember& member) noexcept;
  // The CQ goes; an event that waits is forgotten.
  void Forget(ChannelMember& member) noexcept { member.Unlink(); }

  // There is room in the pipe, or nobody will ever read it.
  void OnReady(uint32_t events) noexcept override;

 private:
  enum class WriteResult : uint8_t { kWritten, kFull, kGone };
  WriteResult Write(uint64_t cq_handle) noexcept;
  void AwaitRoom() noexcept;
  void StopAwaiting() noexcept;

  EngineContext& context_;
  LiveSessionCounters& counters_;
  const UniqueFd write_fd_;
  IntrusiveList<ChannelMember, ChannelWaitTag> waiting_;
  bool awaiting_room_ = false;
};

}  // namespace rdmad::engine
