// What the endpoints of one session share: channels for the events of established connections, and memory for receives.
//
// An endpoint sleeps on its completion channel only: when its connection ends, the daemon flushes the QP, and the reason
// can be read from the event channel then. So hundreds of endpoints share one event channel that nobody waits on;
// whoever looks hands everybody's events out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/event_channel.h"
#include "client/sdk/pool_mapping.h"
#include "client/sdk/session.h"
#include "rdmad/cm.h"
#include "rdmad/pool.h"

namespace rdmad::sdk {

// An endpoint as the hub knows it: the context of its CmId.
class HubMember {
 public:
  // From any thread, while the id lives. Must not call back into the hub.
  virtual void OnCmEvent(const CmEvent& event) noexcept = 0;

 protected:
  ~HubMember() = default;
};

// Thread: any. Owner: its endpoints.
class EndpointHub {
 public:
  // That of the session, made with the first endpoint.
  static std::shared_ptr<EndpointHub> Of(const std::shared_ptr<Session>& session);
  explicit EndpointHub(std::shared_ptr<Session> session) noexcept : session_(std::move(session)) {}

  const std::shared_ptr<Session>& session() const noexcept { return session_; }

  // Moves the id's events to a channel of the hub; the id's context is a HubMember.
  absl::StatusOr<EventChannel*> Adopt(CmId& id);
  // The id has gone, or is about to.
  void Leave(EventChannel* channel) noexcept;
  // Hands out what is pending; waits for something to come until the deadline.
  void Dispatch(EventChannel* channel, Deadline deadline);

  // Memory for one receive.
  absl::StatusOr<Buffer> AllocateReceive(size_t size_bytes);

 private:
  // Each id reports two events at its end, and the daemon keeps 4096 for a channel that nobody reads.
  static constexpr uint32_t kMaxIdsPerChannel = 1000;

  struct SharedChannel {
    std::unique_ptr<EventChannel> channel;
    uint32_t ids = 0;
  };

  const std::shared_ptr<Session> session_;
  std::mutex channels_mutex_;
  std::list<SharedChannel> channels_;
  std::mutex slabs_mutex_;
  std::vector<std::shared_ptr<PoolMapping>> slabs_;
};

}  // namespace rdmad::sdk
