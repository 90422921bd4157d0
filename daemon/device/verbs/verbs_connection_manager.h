// Connections of all verbs devices: the kernel's rdma_cm, by way of librdmacm.
//
// The daemon owns every rdma_cm_id and one event channel; an id's context is its VerbsCmEndpoint.
// No id ever gets a QP (id->qp stays null): QPs live in each session's own ibv_context. So the
// kernel reports CONNECT_RESPONSE, and what librdmacm would do with the QP is done by our caller
// with InitQpAttr().
//
// Each event is copied and acknowledged before anybody acts on it, because rdma_destroy_id() waits
// for acknowledgements, and events are taken from the kernel one by one, because the kernel forgets
// those of an id that is destroyed. What fails at once in the kernel but is an event for our
// callers (no route to the peer) is queued here.
//
// **Removal of a device.** The kernel (for drivers that cannot be cut off from their users, such as
// rxe) does not finish before every ibv_context on the device is closed. librdmacm opens one of its
// own on each device that an id was ever bound to, and closes it only when it sees another device.
// So an *anchor*, an id of ours that does nothing, is bound to each such device: it keeps that
// context valid and hears of the removal, also where no other id would (none is left, or a request
// is not accepted yet). Then the context's files are closed under librdmacm's hands, all ids on the
// device are released, and their endpoints get kDeviceRemoval.
//
// The kernel refuses a channel's file to a process that has changed its credentials since it opened
// it.
//
// Thread: control. Owner: the verbs devices' factory; it outlives its endpoints.
#pragma once

#include <rdma/rdma_cma.h>

#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/port_table.h"
#include "daemon/device/verbs/device_finder.h"
#include "daemon/device/wake_fd.h"

namespace rdmad::verbs {

class VerbsCmEndpoint;

class VerbsConnectionManager : public device::ConnectionManager {
 public:
  // `finder` outlives the manager, which makes no connections before Open(). Errors: the kernel's.
  static absl::StatusOr<std::unique_ptr<VerbsConnectionManager>> Create(const DeviceFinder* finder);
  ~VerbsConnectionManager() override;

  // To be called once there is a device, which librdmacm insists on; again does nothing. Wildcard
  // listeners from before listen from now on, if nobody has taken their port. Errors: Unavailable (the kernel has no rdma_cm, may
  // not be asked, or has no RDMA device; says what to do); others of the kernel.
  absl::Status Open();
  // Is told, inside Open(), of each id from before that cannot do what it was told. Its application
  // was told that it could, and has no event for this.
  void SetLateFailureSink(std::function<void(const absl::Status&)> sink) {
    late_failures_ = std::move(sink);
  }

  // If the kernel makes no id, each call of the endpoint says why.
  std::unique_ptr<device::CmEndpoint> CreateEndpoint(device::PortSpace port_space,
                                                     device::CmEventSink* sink) override;
  bool Serves(const IpAddress& address) const override;
  int poll_fd() const noexcept override { return wake_.fd(); }
  void Poll(device::TimeNs now) override;
  device::TimeNs NextDeadline() const noexcept override { return device::kNever; }

  // For ids on a device that has no anchor: releases them, too. For all others the kernel's own
  // report counts, so this may come late, when a new device has the name.
  void OnDeviceRemoved(std::string_view ibv_name);

  [[nodiscard]] size_t endpoint_count() const noexcept { return endpoints_.size(); }

 private:
  friend class VerbsCmEndpoint;

  struct ChannelCloser {
    void operator()(rdma_event_channel* channel) const noexcept {
      rdma_destroy_event_channel(channel);
    }
  };
  using Channel = std::unique_ptr<rdma_event_channel, ChannelCloser>;
  struct IdDestroyer {
    void operator()(rdma_cm_id* id) const noexcept { rdma_destroy_id(id); }
  };
  using Id = std::unique_ptr<rdma_cm_id, IdDestroyer>;
  struct QueuedEvent {
    VerbsCmEndpoint* endpoint;
    device::CmEvent event;
  };

  VerbsConnectionManager(const DeviceFinder* finder, device::WakeFd wake);

  // ---- for the endpoints ----
  void Register(VerbsCmEndpoint* endpoint) { endpoints_.insert(endpoint); }
  // Drops what is queued for it, too.
  void Unregister(VerbsCmEndpoint* endpoint);
  // To be delivered by the next Poll().
  void Post(VerbsCmEndpoint* endpoint, device::CmEvent event);

  // To be called when `id` may have been bound to a device. Without an anchor (no memory) a removal
  // may have to wait until the daemon ends.
  void Anchor(const rdma_cm_id& id);
  [[nodiscard]] bool HasAnchor(const ibv_context* context) const;

  void OnDeviceGone(ibv_context* context);
  // Takes the event over.
  void OnEvent(rdma_cm_event* raw);

  const DeviceFinder* const finder_;
  Channel channel_;  // null before Open()
  // Who has which port before Open(). Where the kernel would look for a free one is not ours.
  device::PortTable deferred_ports_{0, 0};
  device::WakeFd wake_;
  std::vector<Id> anchors_;  // their context is null
  std::unordered_set<VerbsCmEndpoint*> endpoints_;
  std::function<void(const absl::Status&)> late_failures_;
  std::deque<QueuedEvent> queued_;
};

}  // namespace rdmad::verbs
