// The client's end of an rdma_cm event channel, and of the ids whose events arrive there.
//
// Each record in the pipe is for one id (a connect request counts for its listener). Reading a record and finding its id
// is one step under the channel's lock, so once an id was taken out of the channel, no event of it can come up any more,
// and those that came up before are counted: the destruction of the id waits until they are acknowledged.
//
// Records of an id that has gone stay in the pipe. The first record must never be such a one, or the descriptor would be
// readable with nothing to get: after the reply to DestroyId or MigrateId told that some were left, the channel looks at
// the front with tee(2) and drops them as they come up.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/deadline.h"
#include "client/sdk/event_pipe.h"
#include "client/sdk/session.h"
#include "proto/shm/event.h"
#include "rdmad/address.h"
#include "rdmad/cm.h"

namespace rdmad::sdk {

class EventChannelState;
class QueuePairState;
class SrqState;

// What a CmId is, apart from the public object. Thread: any. Owner: CmId, and events of it.
class IdState {
 public:
  IdState(std::shared_ptr<Session> of_session, uint64_t its_handle, PortSpace its_port_space) noexcept
      : session(std::move(of_session)), handle(its_handle), port_space(its_port_space) {}

  const std::shared_ptr<Session> session;
  const uint64_t handle;
  const PortSpace port_space;

  // Notes what an event says about the id, before anybody sees the event.
  void Learn(const shm::CmEvent& event);

  void CountEvent() noexcept;
  void AckEvent() noexcept;
  // Blocks until every counted event is acknowledged; then counts from 0 again.
  void WaitForAcks();
  uint32_t events() const noexcept;

  mutable std::mutex mutex;  // guards everything below
  CmId* owner = nullptr;
  std::shared_ptr<EventChannelState> channel;
  bool sync = false;
  uint32_t generation = 0;
  Address local;
  Address peer;
  std::optional<uint32_t> device_index;
  std::shared_ptr<QueuePairState> qp;
  std::shared_ptr<SrqState> srq;

 private:
  std::condition_variable acked_;
  uint32_t events_ = 0;
  uint32_t acked_events_ = 0;
};

// One event, as it was read.
struct EventRecord {
  shm::CmEvent raw;
  std::shared_ptr<IdState> id;      // whose event it is; with a connect request the listener
  std::shared_ptr<IdState> new_id;  // connect request only
  ConnParam param;
  UdParam ud;
  bool acked = false;

  void Ack() noexcept {
    if (!std::exchange(acked, true)) id->AckEvent();
  }
};

// Thread: any. Owner: EventChannel and the ids on it.
class EventChannelState : public std::enable_shared_from_this<EventChannelState> {
 public:
  static absl::StatusOr<std::shared_ptr<EventChannelState>> Create(const std::shared_ptr<Session>& session);
  // For tests: without a daemon's channel behind it.
  EventChannelState(std::shared_ptr<Session> session, uint64_t handle, UniqueFd fd) noexcept;
  ~EventChannelState();
  EventChannelState(const EventChannelState&) = delete;
  EventChannelState& operator=(const EventChannelState&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  uint64_t handle() const noexcept { return handle_; }
  EventPipe& pipe() noexcept { return pipe_; }

  // The id's events of `generation` and later are reported from now on.
  void AddId(const std::shared_ptr<IdState>& id, uint32_t generation);
  // The id ends: no event of it comes up any more. `reported`: how many the daemon wrote into this channel for it, in
  // all. Connect requests that nobody has read are rejected.
  void RemoveId(const IdState& id, uint32_t reported);
  // The same for an id that goes to another channel; returns its events that nobody has read.
  std::vector<shm::CmEvent> MoveIdAway(const IdState& id, uint32_t reported);
  // The same for an id that a connect request made and that nobody has read: what came after the request. After the
  // daemon has moved it.
  std::vector<shm::CmEvent> MoveRequestAway(uint64_t id_handle);
  // Events that came along with an id: reported before those of the pipe.
  void AddPending(const std::vector<shm::CmEvent>& events);
  bool HasPending() const;

  absl::StatusOr<std::unique_ptr<EventRecord>> GetEvent(Deadline deadline);

 private:
  struct Entry {
    std::shared_ptr<IdState> id;
    uint32_t generation = 0;
    bool removal_reported = false;
  };

  Entry* FindEntry(const shm::CmEvent& event);
  // Null: of an id that is gone.
  std::unique_ptr<EventRecord> Deliver(const shm::CmEvent& event);
  std::unique_ptr<EventRecord> NextRemoval();
  // One attempt, without waiting. With kRecord, null stands for one of an id that is gone.
  PipeResult TryGet(std::unique_ptr<EventRecord>* record);
  // Takes the id out; returns its events that nobody has read.
  std::vector<shm::CmEvent> TakeOut(const IdState& id, uint32_t reported);
  void OnStale(const shm::CmEvent& event);
  // Copies of what is in the pipe, up to `max_records` of them, without taking it out.
  std::vector<shm::CmEvent> Peek(size_t max_records);
  void DropStaleFront();
  // Rejects the requests that nobody will see. Without the lock.
  void DestroyOrphans();

  const std::shared_ptr<Session> session_;
  const uint64_t handle_;
  EventPipe pipe_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> ids_;
  std::deque<shm::CmEvent> pending_;
  bool maybe_stale_ = false;  // records of ids that are gone may be in the pipe
  std::set<uint64_t> moved_;       // new ids of connect requests that are in the pipe and were dealt with
  std::vector<uint64_t> orphans_;  // new ids of connect requests that nobody will see
  UniqueFd peek_in_;          // a pipe to copy records into; made when first needed
  UniqueFd peek_out_;
};

// A new asynchronous id on `channel`.
absl::StatusOr<std::unique_ptr<CmId>> MakeId(const std::shared_ptr<EventChannelState>& channel, PortSpace port_space);

Address FromShm(const shm::SocketAddress& address) noexcept;
Address FromProto(const v1::SocketAddress& address) noexcept;
v1::SocketAddress ToProto(const Address& address);

}  // namespace rdmad::sdk
