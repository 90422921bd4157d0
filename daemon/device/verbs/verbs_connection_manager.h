// Connections of all verbs devices: the kernel's rdma_cm, by way of librdmacm.
//
// The daemon owns every rdma_cm_id and one event channel; an id's context is its VerbsCmEndpoint. No id ever gets a QP
// (id->qp stays null): QPs live in each session's own ibv_context. So the kernel reports CONNECT_RESPONSE, and what
// librdmacm would do with the QP is done by our caller with InitQpAttr().
//
// Each event is copied and acknowledged before anybody acts on it, because rdma_destroy_id() waits for acknowledgements,
// and events are taken from the kernel one by one, because the kernel forgets those of an id that is destroyed. What fails
// at once in the kernel but is an event for our callers (no route to the peer), and what the kernel reports to nobody (the
// device of a request that was not accepted yet has gone), is queued here.
//
// The kernel refuses a channel's file to a process that has changed its credentials since it opened it.
//
// Thread: control. Owner: the verbs devices' factory; it outlives its endpoints.
#pragma once

#include <rdma/rdma_cma.h>

#include <deque>
#include <memory>
#include <string_view>
#include <unordered_set>

#include "absl/status/statusor.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/verbs/device_finder.h"
#include "daemon/device/wake_fd.h"

namespace rdmad::verbs {

class VerbsCmEndpoint;

class VerbsConnectionManager : public device::ConnectionManager {
 public:
  // `finder` outlives the manager. Errors: Unavailable (the kernel has no rdma_cm, may not be asked, or has no RDMA device
  // yet; says what to do); others of the kernel.
  static absl::StatusOr<std::unique_ptr<VerbsConnectionManager>> Create(const DeviceFinder* finder);
  ~VerbsConnectionManager() override;

  // If the kernel makes no id, each call of the endpoint says why.
  std::unique_ptr<device::CmEndpoint> CreateEndpoint(device::PortSpace port_space,
                                                     device::CmEventSink* sink) override;
  bool Serves(const IpAddress& address) const override;
  int poll_fd() const noexcept override { return wake_.fd(); }
  void Poll(device::TimeNs now) override;
  device::TimeNs NextDeadline() const noexcept override { return device::kNever; }

  // The device is going. All its ids are released at once, and their endpoints get kDeviceRemoval. The kernel tells most
  // of them by itself, and the order does not matter. To be called while the finder still knows no other device by this
  // name.
  void OnDeviceRemoved(std::string_view ibv_name);

  [[nodiscard]] size_t endpoint_count() const noexcept { return endpoints_.size(); }

 private:
  friend class VerbsCmEndpoint;

  struct ChannelCloser {
    void operator()(rdma_event_channel* channel) const noexcept { rdma_destroy_event_channel(channel); }
  };
  using Channel = std::unique_ptr<rdma_event_channel, ChannelCloser>;
  struct QueuedEvent {
    VerbsCmEndpoint* endpoint;
    device::CmEvent event;
  };

  VerbsConnectionManager(const DeviceFinder* finder, Channel channel, device::WakeFd wake);

  // ---- for the endpoints ----
  void Register(VerbsCmEndpoint* endpoint) { endpoints_.insert(endpoint); }
  // Drops what is queued for it, too.
  void Unregister(VerbsCmEndpoint* endpoint);
  // To be delivered by the next Poll().
  void Post(VerbsCmEndpoint* endpoint, device::CmEvent event);

  // Takes the event over.
  void OnEvent(rdma_cm_event* raw);

  const DeviceFinder* const finder_;
  const Channel channel_;
  device::WakeFd wake_;
  std::unordered_set<VerbsCmEndpoint*> endpoints_;
  std::deque<QueuedEvent> queued_;
};

}  // namespace rdmad::verbs
