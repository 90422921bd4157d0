// One attachment to the daemon, as the objects of the SDK use it: calls, descriptors, arenas, doorbells, and whether the
// daemon is still there.
//
// A session never comes back: once the daemon has hung up it is dead, and so are its objects. ClientState makes the next.
// Thread: any. Owner: every object made in it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/attach_socket.h"
#include "client/sdk/control_channel.h"
#include "client/sdk/deadline.h"
#include "client/sdk/event_pipe.h"
#include "client/sdk/lane.h"
#include "client/sdk/mapping.h"
#include "client/sdk/qp_table.h"
#include "client/sdk/rpc.h"
#include "client/sdk/status_macros.h"
#include "rdmad/client.h"

namespace rdmad::sdk {

class EndpointHub;
class PdState;
class PoolMapping;

// A queue in a mapped arena.
struct MappedQueue {
  std::byte* data = nullptr;
  uint32_t slot_count = 0;
};

// One that belongs to an engine.
struct LaneQueue {
  MappedQueue ring;
  const Lane* lane = nullptr;
};

// Who holds on to memory of pools until a completion has been looked at.
class Reaper {
 public:
  // Looks, and gives back what is done; waits for nothing. From any thread; must not come back to the session's reapers.
  virtual void Reap() noexcept = 0;

 protected:
  ~Reaper() = default;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  static absl::StatusOr<std::shared_ptr<Session>> Attach(const std::string& run_dir, const AttachOptions& options);
  // From parts: what Attach does after the handshake, and what tests do without a daemon.
  static absl::StatusOr<std::shared_ptr<Session>> Create(Attachment attachment, std::unique_ptr<ControlChannel> channel,
                                                         const std::string& run_dir, absl::Duration call_timeout);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  uint64_t id() const noexcept { return id_; }
  const std::string& daemon_version() const noexcept { return daemon_version_; }
  const std::string& run_dir() const noexcept { return run_dir_; }

  // Errors: the daemon's; Unavailable (dead).
  template <typename Method>
  absl::StatusOr<typename Method::Reply> Call(const Method& method, const typename Method::Request& request) {
    typename Method::Reply reply;
    if (absl::Status status = CallRaw(method.path, request, &reply); !status.ok()) return status;
    return reply;
  }
  // For giving things back: a dead session has nothing left to give back to.
  template <typename Method>
  absl::Status Release(const Method& method, const typename Method::Request& request) {
    typename Method::Reply reply;
    absl::Status status = CallRaw(method.path, request, &reply);
    return alive() ? status : absl::OkStatus();
  }

  absl::StatusOr<UniqueFd> TakeDescriptor(uint64_t tag, v1::DescriptorKind kind);
  // Maps the arena if this reply is the first that names it; `queue_bytes` are checked to lie within.
  absl::StatusOr<MappedQueue> MapQueue(const v1::QueueLocation& location, uint64_t queue_bytes);

  // The engine of a completion vector, as long as the session. `sent`: what the reply that made a queue there says of it,
  // or null if it says nothing, since an earlier one did.
  absl::StatusOr<const Lane*> MapLane(uint32_t comp_vector, const v1::EngineLane* sent);
  // Both of a queue that a reply names: descriptors of each are taken, whether or not the other fails.
  template <typename Reply>
  absl::StatusOr<LaneQueue> MapQueueInLane(const Reply& reply, uint64_t queue_bytes, uint32_t comp_vector) {
    const absl::StatusOr<MappedQueue> queue = MapQueue(reply.ring(), queue_bytes);
    const absl::StatusOr<const Lane*> lane = MapLane(comp_vector, reply.has_lane() ? &reply.lane() : nullptr);
    SDK_RETURN_IF_ERROR(queue.status());
    SDK_RETURN_IF_ERROR(lane.status());
    return LaneQueue{*queue, *lane};
  }

  // As last seen.
  bool alive() const noexcept { return alive_.load(std::memory_order_acquire); }
  // Looks: one system call.
  bool CheckAlive() noexcept;
  // CheckAlive at most every few milliseconds, for those who poll.
  bool CheckAliveNowAndThen() noexcept;
  void MarkDead() noexcept { alive_.store(false, std::memory_order_release); }
  absl::Status DeadError() const;

  EventPipe& async_pipe() noexcept { return async_pipe_; }
  // True for the first caller after the session died.
  bool TakeFatalEvent() noexcept { return !fatal_reported_.exchange(true); }

  QpTable& qps() noexcept { return qps_; }

  // Pools by address. Find: the pool that contains the whole range, or null.
  void AddPool(const std::shared_ptr<PoolMapping>& pool);
  void RemovePool(const PoolMapping& pool) noexcept;
  std::shared_ptr<PoolMapping> FindPool(const void* addr, size_t length_bytes) const;

  // PDs that exist; and the one that ids without a PD of their own share, per device.
  void AddPd(const std::shared_ptr<PdState>& pd);
  absl::StatusOr<std::shared_ptr<PdState>> DefaultPd(uint32_t device_index);

  void AddReaper(Reaper* reaper);
  // Returns when its Reap runs no more.
  void RemoveReaper(Reaper* reaper) noexcept;
  // For a pool that has run out.
  void Reap() noexcept;

  // Where the endpoints of the session meet; see EndpointHub::Of.
  struct HubSlot {
    std::mutex mutex;
    std::weak_ptr<EndpointHub> hub;
  };
  HubSlot& hub_slot() noexcept { return hub_slot_; }

 private:
  Session(Attachment attachment, std::unique_ptr<ControlChannel> channel, const std::string& run_dir,
          absl::Duration call_timeout, std::unique_ptr<Lane> first_lane);
  absl::Status CallRaw(const char* path, const google::protobuf::MessageLite& request,
                       google::protobuf::MessageLite* reply);
  absl::StatusOr<std::byte*> ArenaData(const v1::QueueLocation& location);

  const uint64_t id_;
  const std::string daemon_version_;
  const std::string run_dir_;
  const absl::Duration call_timeout_;
  AttachSocket socket_;
  const std::unique_ptr<ControlChannel> channel_;
  EventPipe async_pipe_;
  QpTable qps_;

  std::atomic<bool> alive_{true};
  std::atomic<bool> fatal_reported_{false};
  std::atomic<int64_t> last_look_ns_{0};

  std::mutex arena_mutex_;
  std::condition_variable arena_mapped_;
  std::map<uint64_t, Mapping> arenas_;

  std::mutex lane_mutex_;
  std::condition_variable lane_mapped_;
  std::map<uint32_t, std::unique_ptr<Lane>> lanes_;  // by completion vector; they stay

  mutable std::mutex objects_mutex_;
  std::map<const std::byte*, std::weak_ptr<PoolMapping>> pools_;  // by first byte
  std::vector<std::weak_ptr<PdState>> pds_;
  std::mutex default_pd_mutex_;
  std::map<uint32_t, std::weak_ptr<PdState>> default_pds_;
  HubSlot hub_slot_;
  std::mutex reapers_mutex_;
  std::set<Reaper*> reapers_;
};

absl::StatusOr<std::vector<DeviceInfo>> QueryDevices(Session& session);

// What a Client is: how to attach, and the session that it has now. Thread: any.
class ClientState {
 public:
  ClientState(AttachOptions options, std::string run_dir, std::shared_ptr<Session> session);

  // As it is, dead or not.
  std::shared_ptr<Session> session() const;
  // One that lives: the present one, or a new one if the daemon was lost. Errors: as Client::Attach.
  absl::StatusOr<std::shared_ptr<Session>> Live();
  const AttachOptions& options() const noexcept { return options_; }
  const std::string& run_dir() const noexcept { return run_dir_; }

 private:
  const AttachOptions options_;
  const std::string run_dir_;
  mutable std::mutex mutex_;
  std::mutex attach_mutex_;
  std::shared_ptr<Session> session_;
};

}  // namespace rdmad::sdk
