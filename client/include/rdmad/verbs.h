// Verbs objects: ProtectionDomain, MemoryRegion, CompletionChannel, CompletionQueue, QueuePair.
//
// Each class is a cheap handle: copies name the same object, and users keep what they use (a QP its CQs and its PD), so
// any order of destruction is right. An object goes away with its last handle and user, or at once with Destroy().
// Thread: any, as verbs: QPs and CQs may be used by several threads at a time; each queue has its own lock.
#pragma once

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
class CompletionChannelState;
class CompletionQueueState;
class PdState;
class QueuePairState;
class RegionState;
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
  // Errors: InvalidArgument (depth 0 or over the device's limit), ResourceExhausted, NotFound (no such device).
  static absl::StatusOr<CompletionQueue> Create(const Client& client, uint32_t device_index, uint32_t depth,
                                                const CompletionChannel* channel = nullptr, void* context = nullptr);

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

struct QpInit {
  QpType type = QpType::kRc;
  CompletionQueue send_cq;  // CmId::CreateQp makes those that are missing
  CompletionQueue recv_cq;
  QpCap cap;
  bool signal_all = false;  // every send WR makes a Wc, whatever its flags say
  void* context = nullptr;
};

// Queue depths count WRs. A send WR frees its place when its Wc, or the Wc of a later send WR, is polled; so of every
// `max_send_wr` WRs in a row at least one must be signaled.
class QueuePair {
 public:
  QueuePair() = default;

  // For applications that move the QP by themselves with Modify; CmId::CreateQp makes one for a connection.
  // Errors: InvalidArgument (over a limit of the device; names it), ResourceExhausted.
  static absl::StatusOr<QueuePair> Create(const ProtectionDomain& pd, const QpInit& init);

  // Posts in order until one fails; `posted`, if given, says how many were taken. One doorbell for all.
  // Errors: ResourceExhausted (queue full), InvalidArgument (too many SGEs, too long inline data, bad opcode),
  // FailedPrecondition (QP not yet connected), Unavailable (the daemon is gone).
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

  // ibv_modify_qp, ibv_query_qp. Errors: InvalidArgument (illegal transition, missing or extra attribute).
  absl::Status Modify(const QpAttr& attr);
  absl::StatusOr<QpAttr> Query() const;

  uint32_t qpn() const noexcept;
  const QpCap& cap() const noexcept;
  uint64_t handle() const noexcept;
  void* context() const noexcept;
  CompletionQueue send_cq() const noexcept;
  CompletionQueue recv_cq() const noexcept;
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
