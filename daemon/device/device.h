// The interface that stands in front of every RDMA device: verbs (rdma-core) and soft (user-space RoCEv2).
//
// Two threads meet here. The *control* thread creates and destroys objects. The *engine* thread posts, polls and moves QP
// states. A new Pd, Mr, Cq or Qp is inert until the engine has run Activate() on it, and may be destroyed only after the
// engine has run Deactivate(): from then on no data-path code, timer or packet can reach it. (The session layer sends
// both as engine commands and waits for the answer, so no lock and no reference count is needed.) Both enter the object
// into, and remove it from, the tables of the engine's data path.
//
// Completions are pushed: the device calls the Cq's CompletionSink on the engine thread. Async events of queue pairs and
// shared receive queues (QP fatal, comm established, SRQ limit, ...) go to the AsyncSink given to the DataPath, on the
// engine thread too; those of ports and devices to the DeviceSource's observer, on the control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/types.h"

namespace rdmad::device {

// An object with an engine-side life. Thread: see each method. Owner: the control side.
class EngineObject {
 public:
  virtual ~EngineObject() = default;
  // Engine thread. Once each, in this order.
  virtual void Activate(TimeNs now) noexcept = 0;
  virtual void Deactivate(TimeNs now) noexcept = 0;
};

// An object whose making has a part that may take long: pages to be pinned, a neighbour to be asked for. The control
// thread makes and destroys it, as any other; Prepare() comes before Activate(), Release() after Deactivate(). It is not
// destroyed while either runs.
class SlowObject : public EngineObject {
 public:
  // Whether both belong on a thread that may wait; if not, they are over at once. Thread: control.
  virtual bool slow() const noexcept { return false; }
  // Any thread; once. Errors: those of the call that made it. Then there is nothing to be activated.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // Any thread; at most once. Destroying it does what is left.
  virtual void Release() noexcept {}
};

// An object, and the index of the engine that drives it.
struct EnginePart {
  uint32_t engine;
  EngineObject* object;
};

// Protection domain: keys of one Pd mean nothing in another.
class Pd : public EngineObject {};

struct MrInit {
  std::byte* host_addr = nullptr;  // where the daemon has the bytes mapped
  uint64_t length_bytes = 0;
  uint64_t iova = 0;               // the address by which WRs and peers name the first byte
  uint32_t access = 0;             // Access bits
};

class Mr : public SlowObject {
 public:
  // Known once it is prepared.
  virtual uint32_t lkey() const noexcept = 0;
  virtual uint32_t rkey() const noexcept = 0;
};

class Cq : public EngineObject {};

// Where receives are posted, before the device has them. Thread: engine.
class ReceiveSource {
 public:
  // Posts what there is, by PostRecv() of the queue that asks, and does nothing else to it: what fails waits for another time.
  virtual void PostReceives() noexcept = 0;

 protected:
  ~ReceiveSource() = default;
};

struct SrqInit {
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint64_t owner_token = 0;  // opaque; comes back with async events
};

// Shared receive queue. A WR goes to the first QP that needs one; its completion to that QP's receive CQ.
class Srq : public EngineObject {
 public:
  virtual uint32_t max_wr() const noexcept = 0;   // any thread; what was granted
  virtual uint32_t max_sge() const noexcept = 0;  // any thread; what was granted

  // Engine thread, all. `limit`: below so many WRs in the queue kSrqLimitReached is reported, once; 0 disarms.
  [[nodiscard]] virtual PostResult PostRecv(const RecvWr& wr) noexcept = 0;
  [[nodiscard]] virtual QpResult SetLimit(uint32_t limit) noexcept = 0;
  virtual uint32_t limit() const noexcept = 0;
  // A device that finds no receive for a message asks there before it says so, if it can. `source` outlives the SRQ's life at
  // the engine, or is null.
  virtual void SetReceiveSource(ReceiveSource*) noexcept {}
};

// Address handle: where a UD send goes. Its engine-side life makes sure that no post can name it any more when it goes.
class Ah : public SlowObject {};

// Memory window of type 2: bound, re-bound and invalidated by WRs of QPs in its PD.
class Mw : public EngineObject {
 public:
  virtual uint32_t rkey() const noexcept = 0;  // any thread; of before the first bind
};

struct QpInit {
  QpType type = QpType::kRc;
  Cq* send_cq = nullptr;
  Cq* recv_cq = nullptr;
  Srq* srq = nullptr;  // then cap.max_recv_* are ignored
  QpCap cap;
  bool signal_all = false;
  uint32_t cookie = 0;  // copied into each Wc
  uint64_t owner_token = 0;  // opaque; comes back with async events
};

class Qp : public EngineObject {
 public:
  virtual uint32_t qpn() const noexcept = 0;  // any thread
  virtual const QpCap& cap() const noexcept = 0;  // any thread; what was granted

  // Engine thread from here on.
  // Posting to a QP in kErr succeeds and completes with kWrFlushErr; before kRts (kInit for receives) it is kWrongState.
  [[nodiscard]] virtual PostResult PostSend(const SendWr& wr, TimeNs now) noexcept = 0;
  [[nodiscard]] virtual PostResult PostRecv(const RecvWr& wr, TimeNs now) noexcept = 0;
  // As ibv_modify_qp(3): checks transition and mask by the QP type's table; moving to kErr flushes, to kReset forgets.
  [[nodiscard]] virtual QpResult Modify(const QpAttr& attr, TimeNs now) noexcept = 0;
  virtual QpAttr Query() const noexcept = 0;
  // State and path MTU as far as they are known without asking hardware, which takes its time: for lists of many.
  virtual QpAttr Known() const noexcept { return Query(); }
  // As for an Srq, of receives of its own.
  virtual void SetReceiveSource(ReceiveSource*) noexcept {}
  // The peer QP lives on the same engine of this daemon, so its bytes never touch a socket.
  virtual bool same_daemon() const noexcept = 0;
};

struct AsyncEvent {
  AsyncEventType type;   // kSrqErr and kSrqLimitReached are of an SRQ, all others of a QP
  uint64_t owner_token;  // of the QP or SRQ
  uint32_t qpn;          // of a QP
};

class AsyncSink {
 public:
  virtual ~AsyncSink() = default;
  virtual void OnAsyncEvent(const AsyncEvent& event) noexcept = 0;
};

// What one engine thread drives for a kind of device (all soft devices share one per engine). Thread: engine.
class DataPath {
 public:
  virtual ~DataPath() = default;
  // One bounded turn: receive, run timers, transmit. Returns the work done (packets, WRs, timers); 0 means idle.
  virtual int DoWork(TimeNs now) noexcept = 0;
  // When DoWork must run next although nothing arrives; kNever if nothing is pending, `now` if work is left over.
  virtual TimeNs NextDeadline(TimeNs now) noexcept = 0;
  // Descriptors whose readability means work (level-triggered). May change only by AddDevice-like commands between
  // turns; the generation tells the engine to read the list again.
  virtual std::span<const int> PollFds() const noexcept = 0;
  virtual uint32_t PollFdsGeneration() const noexcept = 0;
};

// ibv_device_attr, as far as an application has it through us.
struct DeviceAttr {
  uint64_t node_guid = 0;
  uint64_t sys_image_guid = 0;
  std::string fw_ver;  // empty: there is no firmware
  uint32_t vendor_id = 0;
  uint32_t vendor_part_id = 0;
  uint32_t hw_ver = 0;
  uint32_t cap_flags = 0;  // DeviceCap bits
  uint64_t page_size_cap = 0;
  uint32_t max_qp = 0;
  uint32_t max_qp_wr = 0;
  uint32_t max_sge = 0;
  uint32_t max_sge_rd = 0;  // of a READ
  uint32_t max_inline_bytes = 0;
  uint32_t max_cq = 0;
  uint32_t max_cqe = 0;
  uint32_t max_mr = 0;
  uint64_t max_mr_bytes = 0;
  uint32_t max_pd = 0;
  uint32_t max_srq = 0;
  uint32_t max_srq_wr = 0;
  uint32_t max_srq_sge = 0;
  uint32_t max_ah = 0;
  uint32_t max_mw = 0;
  uint32_t max_mcast_groups = 0;
  uint32_t max_mcast_qps = 0;      // per group
  uint32_t max_total_mcast_qps = 0;
  uint32_t atomic_capability = 0;  // ibv_atomic_cap
  uint32_t max_msg_bytes = 0;
  uint32_t max_qp_rd_atom = 0;       // READs and atomics of peers at a time: of a QP
  uint32_t max_res_rd_atom = 0;      // and of all QPs
  uint32_t max_qp_init_rd_atom = 0;  // and of a QP as requester
  uint32_t max_pkeys = 1;
  uint8_t local_ca_ack_delay = 0;  // 4.096 us * 2^this: how late an ACK may be sent
  uint32_t num_comp_vectors = 1;   // engines
  Mtu max_mtu = Mtu::k4096;
};

// ibv_port_attr.
struct PortAttr {
  PortState state = PortState::kDown;
  Mtu active_mtu = Mtu::k1024;
  PhysState phys_state = PhysState::kDisabled;
  LinkLayer link_layer = LinkLayer::kEthernet;
  LinkRate rate{};
  uint32_t gid_table_length = 0;
  uint16_t pkey_table_length = 1;
  uint32_t cap_flags = 0;  // ibv_port_cap_flags
  uint16_t cap_flags2 = 0;
  uint32_t bad_pkey_count = 0;
  uint32_t qkey_violation_count = 0;
  // Of InfiniBand; 0 on RoCE.
  uint16_t lid = 0;
  uint16_t sm_lid = 0;
  uint8_t lmc = 0;
  uint8_t sm_sl = 0;
  uint8_t subnet_timeout = 0;
  uint8_t init_type_reply = 0;
  uint8_t max_vl_num = 0;  // code: 1 is one lane
  uint8_t flags = 0;

  [[nodiscard]] bool active() const noexcept { return state == PortState::kActive; }
};

struct GidEntry {
  uint32_t index;
  IpAddress address;
  GidType type = GidType::kRoceV2;
  uint32_t interface_index = 0;  // 0: none
};

struct CounterValue {
  const char* name;  // snake_case, without prefix
  const char* unit;  // "packets", "bytes", ...
  const char* help;
  uint64_t value;
};

// One application's use of a device (ibv_context) at one engine: what it makes there, which nobody else's can reach. It and
// all of that live on this engine. Activated before, and deactivated after, all that is made from it; destroyed last.
//
// An application that uses several engines has a context for each (Share()). PDs, regions, windows and address handles are
// made from the first one and good for all: what the other engines have to know of them is a *part*, which is activated and
// deactivated there, in no order with the object itself, and destroyed before it.
//
// Thread: control. Owner: the session.
class Context : public EngineObject {
 public:
  // Errors of all: InvalidArgument (a value over the device's limits; says which, asked and limit);
  // ResourceExhausted (the device or the kernel has no more; says what to do); Unimplemented (this device has no such
  // thing); Unavailable (device removed).
  virtual absl::StatusOr<std::unique_ptr<Pd>> AllocPd() = 0;
  virtual absl::StatusOr<std::unique_ptr<Mr>> RegisterMr(Pd& pd, const MrInit& init) = 0;
  virtual absl::StatusOr<std::unique_ptr<Cq>> CreateCq(uint32_t depth, CompletionSink* sink) = 0;
  virtual absl::StatusOr<std::unique_ptr<Srq>> CreateSrq(Pd& pd, const SrqInit& init) = 0;
  virtual absl::StatusOr<std::unique_ptr<Qp>> CreateQp(Pd& pd, const QpInit& init) = 0;
  // InvalidArgument also for an sgid_index or a destination that the device cannot use.
  virtual absl::StatusOr<std::unique_ptr<Ah>> CreateAh(Pd& pd, const AddressVector& av) = 0;
  virtual absl::StatusOr<std::unique_ptr<Mw>> AllocMw(Pd& pd) = 0;
  // The UD `qp` gets what is sent to `group` while the object lives, and the host is a member of the group on this
  // device's network (IGMP, MLD). `qp` outlives the object.
  virtual absl::StatusOr<std::unique_ptr<EngineObject>> AttachMulticast(Qp& qp, const IpAddress& group) = 0;

  // Of the first context: one for another engine, which does not outlive this one.
  virtual absl::StatusOr<std::unique_ptr<Context>> Share(uint32_t engine) = 0;
  // Of another context: its engine's part of what the first one made and prepared. Null: it has none.
  virtual std::unique_ptr<EngineObject> PartOf(Mr& mr) = 0;
  virtual std::unique_ptr<EngineObject> PartOf(Mw& mw) = 0;
  virtual std::unique_ptr<EngineObject> PartOf(Ah& ah) = 0;
};

// One device. Thread: control. Owner: the daemon's device list.
class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const noexcept = 0;    // "soft0"
  virtual const std::string& kind() const noexcept = 0;    // "soft" or "verbs"
  virtual const std::string& netdev() const noexcept = 0;  // interface, or empty
  virtual const DeviceAttr& attr() const noexcept = 0;
  virtual PortAttr QueryPort() const = 0;
  virtual std::vector<GidEntry> Gids() const = 0;
  // The partitions by index (ibv_query_pkey). RoCE has the default one and no other.
  virtual std::vector<uint16_t> Pkeys() const { return {0xffff}; }
  // Counters are written by the engine with relaxed atomics; any thread may read them.
  virtual std::vector<CounterValue> Counters() const = 0;

  // `engine`: the index of the one that will drive it. Errors: ResourceExhausted (descriptors, memory); Unavailable
  // (device removed).
  virtual absl::StatusOr<std::unique_ptr<Context>> Open(uint32_t engine) = 0;
};

}  // namespace rdmad::device
