// Verbs objects: ProtectionDomain, MemoryRegion, MemoryWindow, AddressHandle, CompletionChannel, CompletionQueue,
// SharedReceiveQueue, QueuePair.
//
// Each class is a cheap handle: copies name the same object, and users keep what they use (a QP its CQs, SRQ and PD), so
// any order of destruction is right. An object goes away with its last handle and user, or at once with Destroy().
// Thread: any, as verbs: QPs and CQs may be used by several threads at a time; each queue has its own lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/client.h"
#include "rdmad/pool.h"
#include "rdmad/types.h"

namespace rdmad {

namespace sdk {
class AddressHandleState;
class CompletionChannelState;
class CompletionQueueState;
class PdState;
class QueuePairState;
class RegionState;
class SrqState;
class WindowState;
}  // namespace sdk

// Memory that the device may touch, and the keys that name it. The region lasts as long as a handle to it.
class MemoryRegion {
 public:
  MemoryRegion() = default;

  uint32_t lkey() const noexcept { return lkey_; }
  uint32_t rkey() const noexcept { return rkey_; }  // 0 from RegMsgs: not for peers
  std::byte* addr() const noexcept { return addr_; }
  size_t length() const noexcept { return length_bytes_; }
  explicit operator bool() const noexcept { return addr_ != nullptr; }

  // Deregisters as soon as no other handle is left (rdma_dereg_mr). When it returns for the last handle, nothing on
  // this host or on the wire can touch the range any more.
  absl::Status Dereg();

  MemoryRegion(std::shared_ptr<sdk::RegionState> state, std::byte* addr, size_t length_bytes, uint32_t lkey,
               uint32_t rkey) noexcept;

 private:
  std::shared_ptr<sdk::RegionState> state_;
  std::byte* addr_ = nullptr;
  size_t length_bytes_ = 0;
  uint32_t lkey_ = 0;
  uint32_t rkey_ = 0;
};

// Keys of one domain mean nothing in another.
class ProtectionDomain {
 public:
  // Errors: NotFound (no such device), ResourceExhausted.
  static absl::StatusOr<ProtectionDomain> Alloc(const Client& client, uint32_t device_index);

  uint32_t device_index() const noexcept;

  // Memory for sends, receives and local ends of reads and writes (rdma_reg_msgs). Must lie in a Pool. Costs nothing
  // but a look-up: the pool is registered once as a whole, for local access only.
  // Errors of all three: InvalidArgument (not within one Pool of this session), ResourceExhausted (quota).
  absl::StatusOr<MemoryRegion> RegMsgs(const void* addr, size_t length_bytes) const;
  // Exactly this range, for peers to read (rdma_reg_read).
  absl::StatusOr<MemoryRegion> RegRead(const void* addr, size_t length_bytes) const;
  // Exactly this range, for peers to write (rdma_reg_write).
  absl::StatusOr<MemoryRegion> RegWrite(const void* addr, size_t length_bytes) const;
  // Exactly this range with these rights, Access bits (ibv_reg_mr).
  absl::StatusOr<MemoryRegion> Reg(const void* addr, size_t length_bytes, uint32_t access) const;

  explicit ProtectionDomain(std::shared_ptr<sdk::PdState> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<sdk::PdState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<sdk::PdState> state_;
};

// A key for part of a region, given to a peer and taken back by work requests, without a call to the daemon: a window of
// type 2 (ibv_mw). QueuePair::PostBind binds it, for peers of that QP. The key ends with QueuePair::PostLocalInv, with the
// peer's WrOpcode::kSendWithInv, with a bind of length 0, or with Dealloc(); only then can the window be bound again, under
// another key: the low 8 bits change (NextKey). It ends, too, when the region or the QP that bound it goes; with a verbs
// device such a window can then only be deallocated.
class MemoryWindow {
 public:
  MemoryWindow() = default;

  // Errors: ResourceExhausted (DeviceInfo::max_mw, quota), Unimplemented (max_mw is 0).
  static absl::StatusOr<MemoryWindow> Alloc(const ProtectionDomain& pd);

  // The key of the last PostBind; before the first one it opens nothing. Thread: any, but binds of one window not at a time.
  uint32_t rkey() const noexcept;
  // For those who post kBindMw by themselves: notes the key that MwBind::rkey said.
  void set_rkey(uint32_t rkey) noexcept;
  // ibv_inc_rkey.
  static constexpr uint32_t NextKey(uint32_t rkey) noexcept { return (rkey & ~0xffu) | ((rkey + 1) & 0xffu); }

  // At once, whatever other handles there are: the key opens nothing any more when it returns (ibv_dealloc_mw).
  absl::Status Dealloc();

  explicit operator bool() const noexcept { return state_ != nullptr; }
  explicit MemoryWindow(std::shared_ptr<sdk::WindowState> state) noexcept : state_(std::move(state)) {}

 private:
  std::shared_ptr<sdk::WindowState> state_;
};

// What kBindMw does (ibv_mw_bind_info): from now on `rkey` opens these bytes to the QP's peer. A bind that cannot be done
// (the window is bound, rights that the region lacks) ends in kMwBindErr, and the QP is in error.
struct MwBind {
  uint32_t rkey = 0;                 // NextKey of the window's last key
  const MemoryRegion* mr = nullptr;  // with kAccessMwBind among its rights
  const void* addr = nullptr;        // within `mr`
  size_t length_bytes = 0;           // 0: opens nothing, and needs no `mr`
  uint32_t access = 0;               // Access: remote rights
};

// Where a UD send goes (ibv_ah). Must exist until the sends that name it are done.
class AddressHandle {
 public:
  AddressHandle() = default;

  // Errors: InvalidArgument (no such sgid_index, or the device cannot reach the address), ResourceExhausted.
  static absl::StatusOr<AddressHandle> Create(const ProtectionDomain& pd, const AddressHandleAttr& attr);
  // To answer a datagram: `grh` is the first kGrhBytes of its receive (ibv_create_ah_from_wc). Asks the daemon for the
  // device's addresses; who answers often keeps the handle. Errors: as AddressHandleAttrFromWc; as Create.
  static absl::StatusOr<AddressHandle> CreateFromWc(const ProtectionDomain& pd, const Wc& wc,
                                                    std::span<const std::byte> grh);

  // What WorkSlot::ah_handle says; 0 without a handle.
  uint32_t slot_handle() const noexcept { return slot_handle_; }
  // At once, whatever other handles there are (ibv_destroy_ah).
  absl::Status Destroy();

  explicit operator bool() const noexcept { return state_ != nullptr; }
  explicit AddressHandle(std::shared_ptr<sdk::AddressHandleState> state) noexcept;

 private:
  std::shared_ptr<sdk::AddressHandleState> state_;
  uint32_t slot_handle_ = 0;  // here, so that posting touches nothing else
};

// The way back to the sender of a datagram, which `device` received (ibv_init_ah_from_wc). One that came to a multicast
// group is answered from the device's first address of the same kind. On InfiniBand a datagram may have no GRH.
// Errors: InvalidArgument (the Wc is no success, or has no GRH on Ethernet; `grh` is too short or holds no IP header); NotFound (the
// address that it was sent to is none of the device's any more).
absl::StatusOr<AddressHandleAttr> AddressHandleAttrFromWc(const DeviceInfo& device, const Wc& wc,
                                                          std::span<const std::byte> grh);

class CompletionQueue;

// Tells of completions in armed CQs through one real descriptor (ibv_comp_channel).
class CompletionChannel {
 public:
  static absl::StatusOr<CompletionChannel> Create(const Client& client);

  // Readable when GetEvent has something; works with poll, epoll, dup and O_NONBLOCK. Belongs to the channel.
  int fd() const noexcept;

  // Waits for the next event and returns its CQ, which is no longer armed (ibv_get_cq_event). Every event returned must
  // be acknowledged with AckEvents. Errors: DeadlineExceeded (`timeout`, or O_NONBLOCK and nothing there); Unavailable
  // (the daemon is gone: poll the CQs once more, they hand out the flushed work).
  absl::StatusOr<CompletionQueue> GetEvent(absl::Duration timeout = absl::InfiniteDuration()) const;

  explicit CompletionChannel(std::shared_ptr<sdk::CompletionChannelState> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<sdk::CompletionChannelState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<sdk::CompletionChannelState> state_;
};

class CompletionQueue {
 public:
  CompletionQueue() = default;

  // `depth`: entries at least. Without a channel it can only be polled. `context` is the caller's.
  //
  // `comp_vector` chooses the daemon's thread (engine) that serves the CQ and the QPs that complete into it, as on an HCA
  // it chooses an interrupt: an application that is to use several cores of the daemon spreads its CQs over
  // 0 <= comp_vector < DeviceInfo::num_comp_vectors. Vector 0 is the engine that the daemon gave to this client. A QP's CQs
  // and SRQ must be of one vector; PDs, regions, windows, address handles and channels serve all of them. (On a verbs
  // device a window is bound by QPs of one vector, that of its first bind.)
  // Errors: InvalidArgument (depth 0 or over the device's limit, no such vector), ResourceExhausted, NotFound (no such
  // device).
  static absl::StatusOr<CompletionQueue> Create(const Client& client, uint32_t device_index, uint32_t depth,
                                                const CompletionChannel* channel = nullptr, void* context = nullptr,
                                                uint32_t comp_vector = 0);

  // Takes up to out.size() completions, oldest first; returns how many. When the daemon is gone, the WRs that were
  // outstanding come out with kWrFlushErr, each once.
  size_t Poll(std::span<Wc> out) noexcept;
  // Asks for one event at the next completion, or the next solicited one or error. What arrived before does not count:
  // poll again after arming, before waiting (ibv_req_notify_cq).
  void RequestNotify(bool solicited_only = false) noexcept;
  void AckEvents(uint32_t count = 1) noexcept;
  // Waits until Poll has something, and returns how many. For a CQ that is alone on its channel: its events are fetched
  // and acknowledged here. Errors: DeadlineExceeded; Unavailable (the daemon is gone, and all that was outstanding has
  // been handed out); FailedPrecondition (kBlocking without a channel).
  absl::StatusOr<size_t> Wait(std::span<Wc> out, absl::Duration timeout = absl::InfiniteDuration(),
                              WaitStyle style = WaitStyle::kBlocking);

  uint32_t depth() const noexcept;
  uint32_t comp_vector() const noexcept;
  uint64_t handle() const noexcept;
  void* context() const noexcept;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const CompletionQueue&, const CompletionQueue&) = default;

  // Blocks until all events that GetEvent returned are acknowledged. Errors: FailedPrecondition (a QP uses it).
  absl::Status Destroy();

  explicit CompletionQueue(std::shared_ptr<sdk::CompletionQueueState> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<sdk::CompletionQueueState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<sdk::CompletionQueueState> state_;
};

struct SrqInit {
  uint32_t max_wr = 16;
  uint32_t max_sge = 1;
  uint32_t limit = 0;  // see SharedReceiveQueue::Modify
  void* context = nullptr;
  // Need not be given: an SRQ goes to the vector of its first QP's CQs, and stays there. See CompletionQueue::Create.
  uint32_t comp_vector = 0;
};

// ibv_srq_attr.
struct SrqAttr {
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;
  uint32_t limit = 0;  // 0: not armed, or it has fired
};

// Receives that many QPs share (ibv_srq): a message takes the oldest one, whichever QP it comes to, and its Wc arrives in
// that QP's receive CQ.
//
// The depth counts WRs: one keeps its place until its Wc was polled, or dropped because its QP was destroyed or reset. As
// in verbs, QPs that go to error leave receives that they have not begun to use in the SRQ, for the others; and one that is
// destroyed or reset amid a message takes that message's receive along, place and all, unless it was moved to error before
// and its event kAsyncQpLastWqe (or the flushed receive) was awaited.
// When the daemon goes away, the receives come out, flushed, of the CQs of QPs that use the SRQ, each once.
class SharedReceiveQueue {
 public:
  SharedReceiveQueue() = default;

  // max_wr() and max_sge() are what was granted. Errors: InvalidArgument (over a limit of the device; names it),
  // ResourceExhausted, Unimplemented (the device has none: DeviceInfo::max_srq is 0).
  static absl::StatusOr<SharedReceiveQueue> Create(const ProtectionDomain& pd, const SrqInit& init);

  // Posts in order until one fails; `posted`, if given, says how many were taken. One doorbell for all.
  // Errors: ResourceExhausted (full), InvalidArgument (too many SGEs), Unavailable (the daemon is gone).
  absl::Status PostRecv(std::span<const RecvWr> wrs, size_t* posted = nullptr) noexcept;
  absl::Status PostRecv(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr) noexcept;
  absl::Status PostRecvv(uint64_t wr_id, std::span<const Sge> sges) noexcept;

  // Arms the limit: once fewer than `limit` receives are left, there is one kAsyncSrqLimitReached, and the limit is 0 again
  // (ibv_modify_srq with IBV_SRQ_LIMIT). Errors: InvalidArgument (over max_wr).
  absl::Status Modify(uint32_t limit);
  absl::StatusOr<SrqAttr> Query() const;

  uint32_t max_wr() const noexcept;
  uint32_t max_sge() const noexcept;
  uint64_t handle() const noexcept;
  void* context() const noexcept;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const SharedReceiveQueue&, const SharedReceiveQueue&) = default;

  // Receives that are left in it vanish without a Wc. Errors: FailedPrecondition (a QP uses it).
  absl::Status Destroy();

  explicit SharedReceiveQueue(std::shared_ptr<sdk::SrqState> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<sdk::SrqState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<sdk::SrqState> state_;
};

struct QpInit {
  QpType type = QpType::kRc;
  CompletionQueue send_cq;  // CmId::CreateQp makes those that are missing
  CompletionQueue recv_cq;
  SharedReceiveQueue srq = {};  // if given, the QP has no receive queue of its own, and cap.max_recv_... mean nothing
  QpCap cap;
  bool signal_all = false;  // every send WR makes a Wc, whatever its flags say
  void* context = nullptr;
};

// Queue depths count WRs. A send WR frees its place when its Wc, or the Wc of a later send WR, is polled; so of every
// `max_send_wr` WRs in a row at least one must be signaled.
// The first WR that fails, and it alone, says why; those after it are flushed (kWrFlushErr), in order.
class QueuePair {
 public:
  QueuePair() = default;

  // For applications that move the QP by themselves with Modify; CmId::CreateQp makes one for a connection.
  // Errors: InvalidArgument (over a limit of the device; names it), ResourceExhausted, Unimplemented (the device does not
  // have this type of QP; says so).
  static absl::StatusOr<QueuePair> Create(const ProtectionDomain& pd, const QpInit& init);

  // Posts in order until one fails; `posted`, if given, says how many were taken. One doorbell for all.
  // Errors: ResourceExhausted (queue full), InvalidArgument (too many SGEs, too long inline data, an operation that the
  // type of QP does not have, a UD send without AddressHandle, receives for a QP with an SRQ), FailedPrecondition (QP not
  // yet connected), Unavailable (the daemon is gone).
  // Posting to a QP in error succeeds; the WR is flushed.
  absl::Status PostSend(std::span<const SendWr> wrs, size_t* posted = nullptr) noexcept;
  absl::Status PostRecv(std::span<const RecvWr> wrs, size_t* posted = nullptr) noexcept;

  // The calls of rdma_verbs.h. `flags`: SendFlags. `mr` may be null with kSendInline or length 0.
  absl::Status PostSend(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr,
                        uint32_t flags) noexcept;
  absl::Status PostSendv(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags) noexcept;
  absl::Status PostRecv(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr) noexcept;
  absl::Status PostRecvv(uint64_t wr_id, std::span<const Sge> sges) noexcept;
  absl::Status PostRead(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr, uint32_t flags,
                        uint64_t remote_addr, uint32_t rkey) noexcept;
  absl::Status PostReadv(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                         uint32_t rkey) noexcept;
  absl::Status PostWrite(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr, uint32_t flags,
                         uint64_t remote_addr, uint32_t rkey) noexcept;
  absl::Status PostWritev(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                          uint32_t rkey) noexcept;
  // One datagram, of at most the path MTU, to QP `remote_qpn` (rdma_post_ud_send). To a multicast group `remote_qpn` is
  // kMulticastQpn.
  absl::Status PostUdSend(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr, uint32_t flags,
                          const AddressHandle& ah, uint32_t remote_qpn, uint32_t remote_qkey = kUdpQkey) noexcept;
  // The 8 bytes at `remote_addr`, a multiple of 8, change as one step; what they were before arrives at `addr`.
  absl::Status PostCompareSwap(uint64_t wr_id, void* addr, const MemoryRegion* mr, uint32_t flags, uint64_t remote_addr,
                               uint32_t rkey, uint64_t compare, uint64_t swap) noexcept;
  absl::Status PostFetchAdd(uint64_t wr_id, void* addr, const MemoryRegion* mr, uint32_t flags, uint64_t remote_addr,
                            uint32_t rkey, uint64_t add) noexcept;
  // Binds `mw` under its next key and notes that one: mw->rkey() may go to the peer with a later send of this queue, for
  // work requests are done in order. `access`: remote rights.
  absl::Status PostBind(uint64_t wr_id, MemoryWindow* mw, const MemoryRegion& mr, const void* addr, size_t length_bytes,
                        uint32_t access, uint32_t flags) noexcept;
  // From here on the window's key `rkey` opens nothing. With kSendFence it waits for our own earlier reads and atomics.
  absl::Status PostLocalInv(uint64_t wr_id, uint32_t rkey, uint32_t flags) noexcept;

  // Receives of a UD QP get what is sent to the group as well (ibv_attach_mcast); CmId::JoinMulticast does it by itself.
  // `group`: a multicast IP address, as GID. Errors: InvalidArgument (not UD, not multicast), ResourceExhausted.
  absl::Status AttachMulticast(const std::array<uint8_t, 16>& group);
  // Ends what AttachMulticast did; a group that the id has joined stays. Errors: InvalidArgument (not attached by hand).
  absl::Status DetachMulticast(const std::array<uint8_t, 16>& group);

  // ibv_modify_qp, ibv_query_qp. Errors: InvalidArgument (illegal transition, missing or extra attribute).
  absl::Status Modify(const QpAttr& attr);
  absl::StatusOr<QpAttr> Query() const;

  uint32_t qpn() const noexcept;
  QpType type() const noexcept;
  const QpCap& cap() const noexcept;
  uint64_t handle() const noexcept;
  void* context() const noexcept;
  CompletionQueue send_cq() const noexcept;
  CompletionQueue recv_cq() const noexcept;
  SharedReceiveQueue srq() const noexcept;  // may be none
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const QueuePair&, const QueuePair&) = default;

  // Outstanding WRs vanish without a Wc, as in ibv_destroy_qp.
  absl::Status Destroy();

  explicit QueuePair(std::shared_ptr<sdk::QueuePairState> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<sdk::QueuePairState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<sdk::QueuePairState> state_;
};

}  // namespace rdmad
