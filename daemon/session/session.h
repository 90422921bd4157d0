// One attached application: what it holds, by which handles, within which quota, and how all of it
// goes away.
//
// Every call of the memory, verbs, cm and session protos is a method here. It takes the message and
// answers into `reply`, then calls `done`, at once or later; `reply` must live until then. Nothing
// here knows gRPC or the event loop, so other doors can lead to the same calls.
//
// Making an object: check the request, take the quota, make the device's object and the engine's
// port, Activate them, send the descriptor if there is one, answer. What is slow in that (a
// SlowObject, a large pool) is done elsewhere, one after the other for each session, so that none
// keeps the others' waiting for more than one. Which engine it lives on is its CQ's say; what is
// for all engines of the session (lane.h) is there when all have answered. Destroying it: refuse
// while others use it (FailedPrecondition names a user, as verbs' EBUSY), Deactivate, free, answer.
// In between the object is in another phase than kLive and calls do not find it. Handles, queue
// numbers, keys and doorbells go back only after Deactivate was answered.
//
// The end (Close): CM ids first, which tells the peers; then multicast attachments, memory
// windows, QPs, SRQs, address handles, CQs, channels and regions are retired in that order. It
// relies on each engine executing commands in order: a Deactivate may be posted while the Activate
// is still on its way. What is being prepared goes when that is over. When all of it is gone from
// all engines, PDs, contexts and the ports of the session are retired; then memory goes. Calls in
// flight are answered too: with Cancelled where they were making something. Close() is idempotent;
// the session may be destroyed once it has called back.
//
// Thread: control. Owner: SessionRegistry (control).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/cm/cm_id_host.h"
#include "daemon/cm/event_channel.h"
#include "daemon/device/connection_manager.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/memory/arena.h"
#include "daemon/session/async_channel.h"
#include "daemon/session/device_list.h"
#include "daemon/session/event_router.h"
#include "daemon/session/handle_table.h"
#include "daemon/session/lane.h"
#include "daemon/session/list_budget.h"
#include "daemon/session/objects.h"
#include "daemon/session/quota.h"
#include "daemon/session/session_environment.h"
#include "daemon/session/session_host.h"
#include "daemon/session/slow_queue.h"
#include "proto/rdmad/v1/admin.pb.h"
#include "proto/rdmad/v1/cm.pb.h"
#include "proto/rdmad/v1/memory.pb.h"
#include "proto/rdmad/v1/session.pb.h"
#include "proto/rdmad/v1/verbs.pb.h"

namespace rdmad::session {

class Session final : private cm::CmIdHost, private cm::EventChannelHost {
 public:
  using Done = std::function<void(absl::Status)>;

  // `sender` outlives the session's Close().
  Session(const SessionEnvironment& environment, SessionIdentity identity,
          const SessionLimits& limits, DescriptorSender* sender);
  // Only before Open(), after a failed Open(), or after Close() has called back.
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Makes the control segment and the pipes; `done` when the engine knows the session, or Cancelled
  // if it was closed. Errors: ResourceExhausted (memory, descriptors).
  absl::StatusOr<AttachGift> Open(std::function<void(absl::Status)> done);

  // Ends the session. `closed` runs when nothing of it is left with engine, device or host;
  // possibly at once.
  void Close(std::function<void()> closed);
  [[nodiscard]] bool closing() const noexcept { return state_ >= State::kClosing; }

  [[nodiscard]] const SessionIdentity& identity() const noexcept { return identity_; }
  [[nodiscard]] device::TimeNs opened_at() const noexcept { return opened_at_; }
  // The engine of completion vector 0.
  [[nodiscard]] uint32_t engine_index() const noexcept {
    return environment_.engines.front()->index();
  }
  // All that it uses, that one first.
  [[nodiscard]] std::vector<uint32_t> engine_indices() const;

  // --- session.proto
  void GetSession(const v1::GetSessionRequest& request, v1::GetSessionReply* reply, Done done);

  // --- memory.proto
  void CreatePool(const v1::CreatePoolRequest& request, v1::CreatePoolReply* reply, Done done);
  void DestroyPool(const v1::DestroyPoolRequest& request, v1::DestroyPoolReply* reply, Done done);
  void RegisterRegion(const v1::RegisterRegionRequest& request, v1::RegisterRegionReply* reply,
                      Done done);
  void DeregisterRegion(const v1::DeregisterRegionRequest& request,
                        v1::DeregisterRegionReply* reply, Done done);

  // --- verbs.proto
  void QueryDevices(const v1::QueryDevicesRequest& request, v1::QueryDevicesReply* reply,
                    Done done);
  void AllocPd(const v1::AllocPdRequest& request, v1::AllocPdReply* reply, Done done);
  void DeallocPd(const v1::DeallocPdRequest& request, v1::DeallocPdReply* reply, Done done);
  void CreateCompletionChannel(const v1::CreateCompletionChannelRequest& request,
                               v1::CreateCompletionChannelReply* reply, Done done);
  void DestroyCompletionChannel(const v1::DestroyCompletionChannelRequest& request,
                                v1::DestroyCompletionChannelReply* reply, Done done);
  void CreateCq(const v1::CreateCqRequest& request, v1::CreateCqReply* reply, Done done);
  void DestroyCq(const v1::DestroyCqRequest& request, v1::DestroyCqReply* reply, Done done);
  void CreateQp(const v1::CreateQpRequest& request, v1::CreateQpReply* reply, Done done);
  void ModifyQp(const v1::ModifyQpRequest& request, v1::ModifyQpReply* reply, Done done);
  void QueryQp(const v1::QueryQpRequest& request, v1::QueryQpReply* reply, Done done);
  void DestroyQp(const v1::DestroyQpRequest& request, v1::DestroyQpReply* reply, Done done);
  void CreateSrq(const v1::CreateSrqRequest& request, v1::CreateSrqReply* reply, Done done);
  void ModifySrq(const v1::ModifySrqRequest& request, v1::ModifySrqReply* reply, Done done);
  void QuerySrq(const v1::QuerySrqRequest& request, v1::QuerySrqReply* reply, Done done);
  void DestroySrq(const v1::DestroySrqRequest& request, v1::DestroySrqReply* reply, Done done);
  void CreateAh(const v1::CreateAhRequest& request, v1::CreateAhReply* reply, Done done);
  void DestroyAh(const v1::DestroyAhRequest& request, v1::DestroyAhReply* reply, Done done);
  void AllocMw(const v1::AllocMwRequest& request, v1::AllocMwReply* reply, Done done);
  void DeallocMw(const v1::DeallocMwRequest& request, v1::DeallocMwReply* reply, Done done);
  void AttachMulticast(const v1::AttachMulticastRequest& request, v1::AttachMulticastReply* reply,
                       Done done);
  void DetachMulticast(const v1::DetachMulticastRequest& request, v1::DetachMulticastReply* reply,
                       Done done);

  // --- cm.proto
  void CreateEventChannel(const v1::CreateEventChannelRequest& request,
                          v1::CreateEventChannelReply* reply, Done done);
  void DestroyEventChannel(const v1::DestroyEventChannelRequest& request,
                           v1::DestroyEventChannelReply* reply, Done done);
  void CreateId(const v1::CreateIdRequest& request, v1::CreateIdReply* reply, Done done);
  void DestroyId(const v1::DestroyIdRequest& request, v1::DestroyIdReply* reply, Done done);
  void MigrateId(const v1::MigrateIdRequest& request, v1::MigrateIdReply* reply, Done done);
  void SetOption(const v1::SetOptionRequest& request, v1::SetOptionReply* reply, Done done);
  void BindAddr(const v1::BindAddrRequest& request, v1::BindAddrReply* reply, Done done);
  void ResolveAddr(const v1::ResolveAddrRequest& request, v1::ResolveAddrReply* reply, Done done);
  void ResolveRoute(const v1::ResolveRouteRequest& request, v1::ResolveRouteReply* reply,
                    Done done);
  void Listen(const v1::ListenRequest& request, v1::ListenReply* reply, Done done);
  void SetQp(const v1::SetQpRequest& request, v1::SetQpReply* reply, Done done);
  void Connect(const v1::ConnectRequest& request, v1::ConnectReply* reply, Done done);
  void Accept(const v1::AcceptRequest& request, v1::AcceptReply* reply, Done done);
  void Reject(const v1::RejectRequest& request, v1::RejectReply* reply, Done done);
  void Establish(const v1::EstablishRequest& request, v1::EstablishReply* reply, Done done);
  void Disconnect(const v1::DisconnectRequest& request, v1::DisconnectReply* reply, Done done);
  void Notify(const v1::NotifyRequest& request, v1::NotifyReply* reply, Done done);
  void InitQpAttr(const v1::InitQpAttrRequest& request, v1::InitQpAttrReply* reply, Done done);
  void JoinMulticast(const v1::JoinMulticastRequest& request, v1::JoinMulticastReply* reply,
                     Done done);
  void LeaveMulticast(const v1::LeaveMulticastRequest& request, v1::LeaveMulticastReply* reply,
                      Done done);

  // --- for operators
  [[nodiscard]] v1::ObjectCounts Counts() const;
  [[nodiscard]] engine::SessionCounters Counters() const;
  [[nodiscard]] uint64_t quota_refusals() const noexcept { return quota_.refusals(); }
  // These two add a part of a list: what stands from `*slot` on, as HandleTable::ForEachFrom() does.
  bool AddPools(uint32_t* slot, ListBudget* budget, v1::ListPoolsReply* reply) const;
  // One entry per CM id; `done` once the engines have told the states of their QPs. A peer at one of
  // `own_addresses` is in this daemon.
  bool AddConnections(uint32_t* slot, ListBudget* budget,
                      const std::vector<IpAddress>& own_addresses, v1::ListConnectionsReply* reply,
                      std::function<void()> done);
  // QPs of each device: counts[device index].
  void AddQpsByDevice(std::vector<uint32_t>* counts) const;

  // The device is gone: what the session holds of it fails from now on, and its client hears of it.
  void OnDeviceRemoved(uint32_t device_index);
  // Something else happened to the device or its port: who has it open hears of it.
  void OnDeviceEvent(uint32_t device_index, device::AsyncEventType type);

  // --- from the engine, by way of EventRouter
  // `object` is a QP or an SRQ.
  void OnAsyncEvent(Handle object, device::AsyncEventType type);
  void OnCqOverrun(Handle cq);
  void OnCorrupt(const char* what);

 private:
  enum class State : uint8_t { kNew, kOpening, kOpen, kClosing, kClosed };

  // session.cc: the engine's answers and the end.
  using Objects = std::initializer_list<device::EngineObject*>;
  // All in one lane.
  void Activate(Lane& lane, Objects objects, std::function<void()> then);
  void Deactivate(Lane& lane, Objects objects, std::function<void()> then);
  // In the first lane, and the parts in theirs.
  void Activate(Objects objects, const LaneParts& parts, std::function<void()> then);
  void Deactivate(Objects objects, const LaneParts& parts, std::function<void()> then);
  // One of the two, for each object; `then` runs when the engines have answered for all.
  using EngineCommand = void (engine::EngineProxy::*)(device::EngineObject&,
                                                      engine::EngineProxy::Done);
  void Command(EngineCommand command, const std::vector<LaneObject>& objects,
               std::function<void()> then);
  void OnAnswer(const std::function<void()>& then);
  void FinishIfQuiet();
  // What all others were made from.
  void RetireBase();
  // As SlowQueue::Run().
  void RunSlowly(std::function<void()> work, bool droppable, std::function<void()> then);
  // Prepares the object, here or elsewhere. `then` gets its word, or Cancelled if it was left out.
  void Prepare(device::SlowObject& object, std::function<void(absl::Status)> then);
  absl::Status CheckOpen() const;
  uint64_t NextDescriptorTag() noexcept { return ++last_descriptor_tag_; }

  // The object if it is live; else NotFound that says what is wrong with the handle.
  template <typename T, HandleKind kKind>
  absl::StatusOr<T*> Live(const HandleTable<T, kKind>& table, Handle handle) const;
  // For the answer to Activate: makes the object live and returns it. Null if the session was
  // closed meanwhile: then the object is retiring and `done` has been told.
  template <typename T, HandleKind kKind>
  T* MakeLive(const HandleTable<T, kKind>& table, Handle handle, const Done& done);
  // For the word of Prepare(): true if the object may be activated. Else it is retiring, and to be
  // buried by the caller; then `done` is told.
  bool OnPrepared(Object& object, const absl::Status& prepared, const Done& done);
  // Marks the object as retiring; false if it was already. Either way `on_gone` (if any) runs when
  // it is gone.
  bool BeginRetiring(Object& object, std::function<void()> on_gone);
  // Takes the object out, destroys it, and runs its on_gone.
  template <typename T, HandleKind kKind>
  void Bury(HandleTable<T, kKind>& table, Handle handle);

  // Retire one object of a kind, whatever its phase. `on_gone` may be null.
  void RetireRegion(Handle handle, std::function<void()> on_gone);
  void ReleaseRegion(Handle handle);
  void RetirePd(Handle handle, std::function<void()> on_gone);
  void RetireChannel(Handle handle, std::function<void()> on_gone);
  void RetireCq(Handle handle, std::function<void()> on_gone);
  void RetireQp(Handle handle, std::function<void()> on_gone);
  void RetireSrq(Handle handle, std::function<void()> on_gone);
  void RetireAh(Handle handle, std::function<void()> on_gone);
  void RetireMw(Handle handle, std::function<void()> on_gone);
  void RetireMulticast(Handle handle, std::function<void()> on_gone);
  void FreePool(Handle handle, Done done);
  void DropCmId(Handle handle);

  // session_memory.cc
  absl::Status ChargePool(PoolObject* object, uint64_t bytes);
  absl::StatusOr<Handle> PreparePool(const v1::CreatePoolRequest& request);
  absl::Status FinishPool(Handle handle, absl::StatusOr<memory::Pool> made,
                          v1::CreatePoolReply* reply);
  // Runs `work` here if it is about few bytes, else elsewhere; then `then`, here.
  void RunByWeight(uint64_t bytes, std::function<void()> work, std::function<void()> then);
  absl::StatusOr<Handle> PrepareRegion(const v1::RegisterRegionRequest& request);

  // session_lanes.cc
  [[nodiscard]] Lane& first_lane() const noexcept { return *lanes_.front(); }
  // Makes its memory and tells the engine. Errors: ResourceExhausted (memory, descriptors).
  absl::StatusOr<Lane*> OpenLane(uint32_t comp_vector, std::function<void()> then);
  // The lane of a vector, opened at its first use. `operation` opens the message. Errors:
  // InvalidArgument (there is no such vector), those of OpenLane().
  absl::StatusOr<Lane*> LaneOf(const char* operation, uint32_t comp_vector);
  // Sends the lane's descriptors if the client does not have them yet, and describes it.
  absl::Status DeliverLane(Lane& lane, const std::function<v1::EngineLane*()>& message);
  // The session's context on a device in a lane, opened at its first use. Errors: NotFound (no such
  // device), those of Open() and Share().
  absl::StatusOr<device::Context*> ContextOn(Lane& lane, uint32_t device_index);
  absl::StatusOr<device::Context*> ContextOn(uint32_t device_index) {
    return ContextOn(first_lane(), device_index);
  }
  // Tells the lane of what there is on a device that it has just opened.
  void FillLane(Lane& lane, uint32_t device_index, device::Context& context);
  // The parts of an object that all lanes which have its device open get, or one of them.
  template <typename Object>
  void AddParts(Object* object) const {
    ForEachOtherLane(object->device_index, [object](Lane& lane, device::Context& context) {
      AddParts(object, lane, context);
    });
  }
  static void AddParts(RegionObject* object, Lane& lane, device::Context& context);
  static void AddParts(MwObject* object, Lane& lane, device::Context& context);
  static void AddParts(AhObject* object, Lane& lane, device::Context& context);
  // Lanes but the first that have the device open.
  void ForEachOtherLane(uint32_t device_index,
                        const std::function<void(Lane&, device::Context&)>& visit) const;
  // The channel's port in a lane, made at its first use. Errors: ResourceExhausted (descriptors).
  absl::StatusOr<engine::ChannelPort*> ChannelPortIn(Lane& lane, ChannelObject* channel);

  // session_verbs.cc, session_qp.cc
  absl::StatusOr<device::Device*> FindDevice(uint32_t index) const;
  absl::StatusOr<Handle> PreparePd(const v1::AllocPdRequest& request);
  absl::StatusOr<Handle> PrepareChannel(UniqueFd* read_end);
  absl::StatusOr<Handle> PrepareCq(const v1::CreateCqRequest& request);
  absl::Status FillCq(const v1::CreateCqRequest& request, Handle handle, CqObject* object);
  absl::StatusOr<Handle> PrepareQp(const v1::CreateQpRequest& request);
  void BindNewQp(Handle handle, Handle id, v1::CreateQpReply* reply, Done done);
  void DeliverQp(Handle handle, v1::CreateQpReply* reply, const Done& done);
  absl::Status FillQp(const v1::CreateQpRequest& request, Handle handle, QpObject* object);
  absl::StatusOr<RingHold> AllocateRing(uint64_t bytes);
  // `operation` opens the message.
  absl::StatusOr<NumberHold> TakeDoorbell(const char* operation, Lane& lane);
  // Sends the arena's descriptor if the client does not have it yet, and describes the ring.
  absl::Status Deliver(const RingHold& ring, uint32_t slot_count, v1::QueueLocation* location);

  // session_srq.cc
  absl::StatusOr<Handle> PrepareSrq(const v1::CreateSrqRequest& request);
  absl::Status FillSrq(const v1::CreateSrqRequest& request, Handle handle, SrqObject* object);
  void AnswerSrq(Handle handle, v1::CreateSrqReply* reply, const Done& done);
  absl::StatusOr<std::unique_ptr<device::Srq>> MakeDeviceSrq(const SrqObject& srq, Lane& lane);
  // Of an SRQ without a place: it will be in this lane. Errors: those of making one there.
  absl::Status BringSrq(SrqObject* srq, Lane& lane);
  // Gives it to its lane's engine, for good: when nothing can go wrong any more with its first QP.
  void PlaceSrq(Handle handle, SrqObject* srq, std::function<void()> then);

  // session_ud.cc
  absl::StatusOr<Handle> PrepareAh(const v1::CreateAhRequest& request);
  // Attaches the QP for this user too; Cancelled if it, or the QP, goes before that is done.
  void Attach(Handle qp, const IpAddress& group, McastUser user, Done done);
  absl::StatusOr<Handle> PrepareMulticast(Handle qp, const IpAddress& group, McastUser user);
  void AddUser(McastUser user, Handle handle, MulticastObject* multicast);
  // InvalidArgument: the QP is not attached for this user. `done` once this user's part is over.
  void Detach(Handle qp, const IpAddress& group, McastUser user, Done done);
  bool CancelAgain(MulticastObject& multicast, McastUser user);
  // What the QP's CM id has attached it to.
  void DetachCmId(const QpObject& qp);

  // session_mw.cc
  absl::StatusOr<Handle> PrepareMw(const v1::AllocMwRequest& request);

  // session_cm.cc
  absl::StatusOr<cm::CmId*> LiveId(Handle handle) const;
  // What a client asks of a connection; the QP that it names, if any, must be one of its own.
  absl::StatusOr<device::ConnParam> OwnConnParam(const char* operation, const cm::CmId& id,
                                                 const v1::ConnParam& message) const;
  // Also of an id's device that is not known yet.
  [[nodiscard]] bool IsOfDevice(const QpObject& qp, const device::Device* device) const;
  void FillIdState(const cm::CmId& id, v1::IdState* state) const;
  void UnbindQp(CmIdObject& id);

  // cm::CmIdHost
  absl::StatusOr<uint64_t> AdoptId(std::unique_ptr<cm::CmId> id, cm::CmId& listener) override;
  void DiscardId(uint64_t handle) override;
  uint32_t DeviceIndex(const device::Device* device) const override;
  void AttachQp(uint64_t handle, const IpAddress& group,
                std::function<void(absl::Status)> done) override;
  void DetachQp(uint64_t handle, const IpAddress& group) override;
  // cm::EventChannelHost
  void OnChannelBlocked(cm::EventChannel& channel) override;
  void OnChannelOverflow(cm::EventChannel& channel) override;

  const SessionEnvironment environment_;
  const SessionIdentity identity_;
  DescriptorSender* sender_;
  State state_ = State::kNew;
  device::TimeNs opened_at_ = 0;
  uint32_t commands_in_flight_ = 0;  // engine commands and slow work not answered yet
  SlowQueue slow_queue_;
  bool base_retired_ = false;
  uint64_t last_descriptor_tag_ = 0;
  std::function<void()> closed_;

  Quota quota_;
  memory::ArenaSet arenas_;
  std::set<uint64_t> delivered_arenas_;
  std::vector<uint32_t> free_slot_handles_;
  uint32_t next_slot_handle_ = 1;  // 0 names no address handle
  std::map<uint32_t, uint32_t> qps_by_device_;

  std::unique_ptr<AsyncChannel> async_channel_;

  // Used objects stand above their users.
  std::vector<std::unique_ptr<Lane>> lanes_;  // by completion vector; null: not in use
  HandleTable<PoolObject, HandleKind::kPool> pools_;
  HandleTable<PdObject, HandleKind::kPd> pds_;
  HandleTable<RegionObject, HandleKind::kRegion> regions_;
  HandleTable<ChannelObject, HandleKind::kCompletionChannel> channels_;
  HandleTable<CqObject, HandleKind::kCq> cqs_;
  HandleTable<SrqObject, HandleKind::kSrq> srqs_;
  HandleTable<AhObject, HandleKind::kAh> ahs_;
  HandleTable<MwObject, HandleKind::kMw> mws_;
  HandleTable<QpObject, HandleKind::kQp> qps_;
  HandleTable<MulticastObject, HandleKind::kMulticast> multicasts_;
  HandleTable<EventChannelObject, HandleKind::kEventChannel> event_channels_;
  HandleTable<CmIdObject, HandleKind::kCmId> cm_ids_;
};

}  // namespace rdmad::session
