// What a session owns, one struct per kind.
//
// Every object is in one of these phases. Its members are declared so that destruction runs in the
// right order: what a member depends on stands above it.
//
// Thread: control. Owner: the session's handle tables.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/ip_address.h"
#include "daemon/cm/cm_id.h"
#include "daemon/cm/event_channel.h"
#include "daemon/device/device.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/pool.h"
#include "daemon/session/event_router.h"
#include "daemon/session/handle_table.h"
#include "daemon/session/lane.h"
#include "daemon/session/quota.h"
#include "daemon/session/session_host.h"
#include "daemon/session/user_list.h"

namespace rdmad::session {

enum class Phase : uint8_t {
  kPreparing,  // as kMaking, and the engine has not been told yet: a slow part is under way
  kMaking,  // the engine has not said yet that it knows the object; calls do not find it
  kLive,
  kRetiring,  // Deactivate is on its way; calls do not find it, but it still counts as a user of
              // others
};

struct Object {
  Phase phase = Phase::kMaking;
  Charge charge;
  // To be called once the object is gone.
  std::vector<std::function<void()>> on_gone;
};

// Bytes of an arena, given back on destruction.
class RingHold {
 public:
  RingHold() = default;
  RingHold(memory::ArenaSet* arenas, const memory::ArenaAllocation& allocation)
      : arenas_(arenas), allocation_(allocation) {}
  RingHold(RingHold&& other) noexcept
      : arenas_(std::exchange(other.arenas_, nullptr)),
        allocation_(other.allocation_),
        charge_(std::move(other.charge_)) {}
  RingHold& operator=(RingHold&& other) noexcept {
    std::swap(arenas_, other.arenas_);
    std::swap(allocation_, other.allocation_);
    std::swap(charge_, other.charge_);
    return *this;
  }
  RingHold(const RingHold&) = delete;
  RingHold& operator=(const RingHold&) = delete;
  ~RingHold() {
    if (arenas_ != nullptr) arenas_->Free(allocation_);
  }

  // What the bytes are charged as.
  void Keep(Charge charge) { charge_ = std::move(charge); }

  [[nodiscard]] bool valid() const noexcept { return arenas_ != nullptr; }
  [[nodiscard]] const memory::ArenaAllocation& get() const noexcept { return allocation_; }

 private:
  memory::ArenaSet* arenas_ = nullptr;
  memory::ArenaAllocation allocation_;
  Charge charge_;
};

// One in a count, for as long as it lives.
struct Uncount {
  void operator()(uint32_t* count) const noexcept { --*count; }
};
using Counted = std::unique_ptr<uint32_t, Uncount>;

// A number that one object has at a time, given back on destruction. Move-only.
class NumberHold {
 public:
  NumberHold() = default;
  NumberHold(std::vector<uint32_t>* free, uint32_t number) : free_(free), number_(number) {}
  NumberHold(NumberHold&& other) noexcept
      : free_(std::exchange(other.free_, nullptr)), number_(other.number_) {}
  NumberHold& operator=(NumberHold&& other) noexcept {
    std::swap(free_, other.free_);
    std::swap(number_, other.number_);
    return *this;
  }
  NumberHold(const NumberHold&) = delete;
  NumberHold& operator=(const NumberHold&) = delete;
  ~NumberHold() {
    if (free_ != nullptr) free_->push_back(number_);
  }
  [[nodiscard]] uint32_t get() const noexcept { return number_; }

 private:
  std::vector<uint32_t>* free_ = nullptr;
  uint32_t number_ = 0;
};

struct PoolObject : Object {
  UserList users;  // regions
  Charge bytes_charge;
  HostBudget::Hold budget;
  std::optional<memory::Pool> pool;
};

struct PdObject : Object {
  UserList users;  // regions, QPs, SRQs, address handles, memory windows
  uint32_t device_index = 0;
  std::unique_ptr<device::Pd> pd;
};

struct RegionObject : Object {
  uint32_t device_index = 0;
  Charge bytes_charge;
  UseRef pd_use;
  UseRef pool_use;
  std::unique_ptr<device::Mr> mr;
  LaneParts parts;
};

struct ChannelObject : Object {
  UserList users;     // CQs
  int write_fd = -1;  // the first port's
  // By completion vector, of the lanes that have CQs on the channel; the first lane's is always
  // there.
  std::map<uint32_t, std::unique_ptr<engine::ChannelPort>> ports;
};

struct CqObject : Object {
  UserList users;  // QPs, once for each of their queues
  Lane* lane = nullptr;
  uint32_t device_index = 0;
  UseRef channel_use;
  EventToken token;
  RingHold ring;
  uint32_t entries = 0;
  bool overrun = false;  // what completes on it from now on is dropped
  std::unique_ptr<engine::CqPort> port;
  std::unique_ptr<device::Cq> cq;
};

// At an engine from its first QP on, which takes it to its own. Until then its receives wait in the
// ring, and its limit here.
struct SrqObject : Object {
  UserList users;  // QPs
  Lane* lane = nullptr;
  bool placed = false;
  uint32_t limit = 0;  // to be armed when it is placed
  uint32_t asked_wr = 0;
  uint32_t asked_sge = 0;
  uint32_t device_index = 0;
  device::Pd* pd = nullptr;
  UseRef pd_use;
  EventToken token;
  NumberHold doorbell;
  RingHold ring;
  uint32_t slots = 0;
  std::unique_ptr<device::Srq> srq;
  std::unique_ptr<engine::SrqPort> port;
};

struct QpObject : Object {
  UserList users;  // multicast attachments that were made by hand
  Lane* lane = nullptr;
  device::QpType type = device::QpType::kRc;
  uint32_t device_index = 0;
  Counted counted;  // with its device
  UseRef pd_use;
  UseRef send_cq_use;
  UseRef recv_cq_use;
  UseRef srq_use;
  Handle srq = kNoHandle;  // may be none
  EventToken token;
  NumberHold doorbell;
  RingHold send_ring;
  RingHold recv_ring;
  uint32_t send_slots = 0;
  uint32_t recv_slots = 0;
  Handle cm_id = kNoHandle;  // the id that drives it
  std::map<IpAddress, Handle>
      groups;  // that it is attached to: the attachments, until they are gone
  std::unique_ptr<device::Qp> qp;
  std::unique_ptr<engine::QueuePairPort> port;
};

struct AhObject : Object {
  uint32_t device_index = 0;
  const device::Pd* pd = nullptr;
  UseRef pd_use;
  NumberHold slot_handle;  // never 0
  std::unique_ptr<device::Ah> ah;
  std::unique_ptr<engine::AhPort> port;
  LaneParts parts;
};

struct MwObject : Object {
  uint32_t device_index = 0;
  UseRef pd_use;
  std::unique_ptr<device::Mw> mw;
  LaneParts parts;
};

enum class McastUser : uint8_t { kByHand, kCmId };

// A QP in a multicast group. One for both who may want it: the application, by hand, and the QP's
// CM id, which has joined the group.
struct MulticastObject : Object {
  // Who wants the QP attached again, once this attachment is gone.
  struct Again {
    McastUser user;
    std::function<void(absl::Status)> done;
  };
  Handle qp = kNoHandle;
  IpAddress group;
  UseRef by_hand;  // keeps the QP from being destroyed, as in verbs
  bool by_cm_id = false;
  std::vector<std::function<void(absl::Status)>> waiting;  // for it to be made
  std::vector<Again> again;
  std::unique_ptr<device::EngineObject> attachment;
};

// An event channel and the watch on its pipe while that is full.
struct EventChannelObject : Object {
  std::unique_ptr<cm::EventChannel> channel;
  std::unique_ptr<FdWatch> watch;
};

struct CmIdObject : Object {
  Handle channel = kNoHandle;
  Handle qp = kNoHandle;
  int64_t created_ns = 0;
  std::unique_ptr<cm::CmId> id;
};

}  // namespace rdmad::session
