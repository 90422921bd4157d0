// Connections of all soft devices: the RDMA IP CM service (annex A11) over CM messages on QP 1.
//
// Sans-I/O: messages come and go through MadIo, time and randomness are arguments, everything
// happens in calls. Peers in this daemon (MadIo::IsLocal) are reached through a queue instead of a
// socket, with the same messages.
//   SoftCmEndpoint     what an application's id sees: addresses, ports, routes, listening, options
//   CmConnection       the protocol of one connection; outlives its endpoint
//   CmConnectionTable  finds connections by ids, peers and timers
//   SidrExchange       the UDP port space: one question for a QP, one answer
//   SidrTable          finds exchanges by ids, peers and timers
//   PortTable          who has which port
//   here               dispatch of messages, requests to listeners, events to endpoints
//
// What comes from the wire is bounded: a listener has as many requests that were not answered as its
// owner has places in its backlog, all listeners together `max_pending_requests`; a REQ beyond that
// is dropped, as TCP drops a SYN, and its sender tries again. (So does the kernel with a REQ; a
// SIDR_REQ it refuses, which ends a client that would have got through a moment later.) A refused
// REQ leaves no state behind.
//
// Listening on a wildcard needs no device: what counts is whether the address that a message came
// to is some device's at that time.
//
// Thread: control. Owner: the soft device's factory; it outlives its endpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/port_table.h"
#include "daemon/device/soft/cm/cm_connection.h"
#include "daemon/device/soft/cm/cm_connection_table.h"
#include "daemon/device/soft/cm/cm_counters.h"
#include "daemon/device/soft/cm/cm_options.h"
#include "daemon/device/soft/cm/device_directory.h"
#include "daemon/device/soft/cm/sidr_exchange.h"
#include "daemon/device/soft/cm/sidr_table.h"
#include "daemon/device/soft/mad_io.h"
#include "daemon/device/wake_fd.h"

namespace rdmad::soft {

class SoftCmEndpoint;
struct CmRequest;

class SoftConnectionManager : public device::ConnectionManager,
                              public CmConnectionHost,
                              public SidrHost {
 public:
  // `io` and `directory` outlive the manager. Errors: those of the kernel (no descriptors).
  static absl::StatusOr<std::unique_ptr<SoftConnectionManager>> Create(
      MadIo* io, const DeviceDirectory* directory, CmOptions options);
  ~SoftConnectionManager() override;

  std::unique_ptr<device::CmEndpoint> CreateEndpoint(device::PortSpace port_space,
                                                     device::CmEventSink* sink) override;
  bool Serves(const IpAddress& address) const override {
    return directory_->FindByAddress(address) != nullptr;
  }
  int poll_fd() const noexcept override { return wake_.fd(); }
  void Poll(TimeNs now) override;
  TimeNs NextDeadline() const noexcept override;

  // ---- what happens to devices and addresses while we run ----
  // Both are to be called after the directory has learnt of the change, and may be called from
  // anywhere but from inside an event sink; what they report comes with the next Poll(). New
  // devices and addresses need no call.
  //
  // The device is going: its connections end without a message, its endpoints get kDeviceRemoval.
  // Those that are only bound or listen keep their port and work again once some device has their
  // address (see OnAddressChanged()); all others are over. `device` is not used afterwards.
  void OnDeviceRemoved(device::Device* device);
  // An address that a device had, or has, is gone, is another device's now, or is to be found under
  // another link-layer address. Every endpoint that is bound to it and has a device gets
  // kAddrChange, each time. Nothing ends by this: the address may come back, and until then
  // messages and packets are lost, which timers and retry limits notice. Listeners serve the
  // address on whatever device has it; what is bound, resolved or connected stays with its device,
  // since its QP is there. If the device goes too, call OnDeviceRemoved() as well, in either order.
  void OnAddressChanged(const IpAddress& address);

  [[nodiscard]] const CmCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] size_t connection_count() const noexcept { return connections_.size(); }
  // SIDR questions and remembered answers.
  [[nodiscard]] size_t sidr_count() const noexcept { return sidr_.size(); }
  [[nodiscard]] size_t pending_requests() const noexcept { return pending_requests_; }
  [[nodiscard]] size_t bound_ports() const noexcept { return ports_.size(); }
  [[nodiscard]] size_t endpoint_count() const noexcept { return endpoints_.size(); }

 private:
  friend class SoftCmEndpoint;
  using EndpointId = CmConnection::OwnerId;

  struct QueuedEvent {
    EndpointId endpoint;
    device::CmEvent event;
  };
  struct LocalMad {
    Flow flow;
    Mad mad;
  };

  SoftConnectionManager(MadIo* io, const DeviceDirectory* directory, CmOptions options,
                        device::WakeFd wake);

  // ---- for the endpoints ----
  EndpointId Register(SoftCmEndpoint* endpoint);
  // Drops what is queued for it, too.
  void Unregister(EndpointId id);
  // To be delivered by the next Poll().
  void Post(EndpointId endpoint, device::CmEvent event);
  absl::StatusOr<CmConnection*> AddConnection(CmState begin, CmFacts facts, device::Device* device,
                                              EndpointId owner);
  absl::StatusOr<SidrExchange*> AddSidr(SidrState begin, SidrFacts facts, device::Device* device,
                                        EndpointId owner);
  // What goes through the device's interface and the route to the peer.
  device::Mtu PathMtu(const device::Device& device, const IpAddress& local,
                      const IpAddress& peer) const;
  // Calls the endpoint's OnQueryTimer() at this time. One per endpoint.
  void SetQueryTimer(EndpointId id, TimeNs deadline);
  // Reads the clock; to be called first in every call from outside.
  void Enter() { now_ = options_.clock(); }
  uint64_t Random() { return random_(); }

  // ---- CmConnectionHost, SidrHost ----
  void SendMad(const Flow& flow, const Mad& mad) override;
  void SetTimer(CmConnection& connection, TimeNs deadline) override;
  void Emit(CmConnection& connection, device::CmEvent event) override;
  void OnMoved(CmConnection& connection, CmState from) override;
  void Rename(CmConnection& connection) override;
  void OnRemoteQpn(CmConnection& connection) override;
  TimeNs now() const override { return now_; }
  void SetTimer(SidrExchange& exchange, TimeNs deadline) override;
  void Emit(SidrExchange& exchange, device::CmEvent event) override;
  void OnMoved(SidrExchange& exchange, SidrState from) override;

  // A request that was pending is not any more.
  void OnRequestSettled() { --pending_requests_; }
  // The connection has come to a state in which it only waits for its time to be up, as `most` may:
  // ends the one that came to it first if there are more.
  void Remember(const CmConnection& connection, size_t most, std::deque<wire::CommId>* in_order);
  void RememberAnswered(const SidrExchange& exchange);
  // The endpoint has nothing more to do with the exchange.
  void ReleaseOwner(const SidrExchange& exchange);

  // ---- Poll() ----
  bool RunTimers(int budget);
  bool RunSidrTimers(int budget);
  bool RunQueries(int budget);
  bool TakeMads(int budget);
  bool DeliverEvents(int budget);
  void Reap();
  void ReapSidr();

  // ---- messages (cm_dispatch.cc) ----
  void OnMad(const Flow& flow, const Mad& mad);
  void OnFirstData(const ReceivedMad& word);
  void Dispatch(const Flow& flow, uint64_t transaction_id, const wire::CmMessage& message);
  void OnReq(const Flow& flow, uint64_t transaction_id, const wire::CmReq& req);
  void OnNewReq(const Flow& flow, uint64_t transaction_id, const wire::CmReq& req);
  void AcceptIntoBacklog(const CmRequest& request, CmFacts facts, const wire::CmReq& req,
                         device::Device* device, SoftCmEndpoint* listener,
                         std::shared_ptr<const void> place);
  void AnswerUnmatched(const Flow& flow, uint64_t transaction_id, const wire::CmMessage& message);
  void Refuse(const Flow& flow, uint64_t transaction_id, const wire::CmReq& req,
              wire::RejReason reason);
  void RefuseMtu(const Flow& flow, uint64_t transaction_id, const wire::CmReq& req,
                 device::Mtu mtu);
  void Answer(const Flow& flow, uint64_t transaction_id, const wire::CmMessage& message);

  // ---- messages of the UDP port space (sidr_dispatch.cc) ----
  void OnSidrReq(const Flow& flow, uint64_t transaction_id, const wire::CmSidrReq& req);
  void TakeSidrRequest(const CmRequest& request, const SidrFacts& facts, const wire::CmSidrReq& req,
                       device::Device* device, SoftCmEndpoint* listener,
                       std::shared_ptr<const void> place);
  void OnSidrRep(const Flow& flow, const wire::CmSidrRep& rep);
  void RefuseSidr(const Flow& flow, uint64_t transaction_id, const wire::CmSidrReq& req,
                  wire::SidrStatus status);

  MadIo* const io_;
  const DeviceDirectory* const directory_;
  const CmOptions options_;
  device::WakeFd wake_;
  std::mt19937_64 random_;
  const uint64_t transaction_base_;  // upper half of our transaction ids
  TimeNs now_ = 0;

  device::PortTable ports_;
  CmConnectionTable connections_;
  SidrTable sidr_;
  std::unordered_map<EndpointId, SoftCmEndpoint*> endpoints_;
  EndpointId last_endpoint_id_ = 0;
  std::set<std::pair<TimeNs, EndpointId>> queries_;  // endpoints that wait for a neighbour
  size_t pending_requests_ = 0;
  std::deque<QueuedEvent> events_;
  std::deque<LocalMad> local_mads_;
  std::deque<wire::CommId> rejected_;  // in the order in which they were; some may be gone
  std::deque<wire::CommId> timewait_;  // likewise
  std::deque<std::pair<Flow, wire::CommId>> answered_;  // likewise, of SIDR
  std::vector<CmConnection*> closed_;                   // to be removed when nobody is inside them
  std::vector<SidrExchange*> sidr_closed_;
  CmCounters counters_;
};

}  // namespace rdmad::soft
