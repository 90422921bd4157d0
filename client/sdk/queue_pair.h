// Queue pairs, client side: posting, depth accounting, and what becomes of WRs when the daemon dies.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/completion_queue.h"
#include "client/sdk/protection_domain.h"
#include "client/sdk/ring/work_queue_writer.h"
#include "client/sdk/session.h"
#include "client/sdk/shared_receive_queue.h"
#include "rdmad/verbs.h"

namespace rdmad::sdk {

// Thread: any. Each of the two queues has a lock for posting; what was polled is counted without it.
// Owner: handles, and the CM id that it belongs to.
class QueuePairState {
 public:
  // `cm_id`: the id that drives it; 0: none does.
  static absl::StatusOr<std::shared_ptr<QueuePairState>> Create(const std::shared_ptr<PdState>& pd,
                                                                const QpInit& init, uint64_t cm_id = 0);
  ~QueuePairState();
  QueuePairState(const QueuePairState&) = delete;
  QueuePairState& operator=(const QueuePairState&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return pd_->session(); }
  const std::shared_ptr<PdState>& pd() const noexcept { return pd_; }
  const std::shared_ptr<CompletionQueueState>& send_cq() const noexcept { return send_cq_; }
  const std::shared_ptr<CompletionQueueState>& recv_cq() const noexcept { return recv_cq_; }
  const std::shared_ptr<SrqState>& srq() const noexcept { return srq_; }  // may be null
  QpType type() const noexcept { return type_; }
  uint64_t handle() const noexcept { return handle_; }
  uint32_t qpn() const noexcept { return qpn_; }
  const QpCap& cap() const noexcept { return cap_; }
  void* context() const noexcept { return context_; }

  absl::Status PostSend(std::span<const SendWr> wrs, size_t* posted) noexcept;
  absl::Status PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept;
  absl::Status Modify(const QpAttr& attr);
  absl::StatusOr<QpAttr> Query();
  absl::Status AttachMulticast(const std::array<uint8_t, 16>& group);
  absl::Status DetachMulticast(const std::array<uint8_t, 16>& group);
  absl::Status Destroy();

  // What the client knows of the state: it follows Modify and the CM, and is behind when the device moves by itself.
  QpState state() const noexcept { return state_.load(std::memory_order_acquire); }
  void set_state(QpState state) noexcept { state_.store(state, std::memory_order_release); }
  // The daemon has moved it to ERR, where posts are taken and flushed. One in RESET is on its way to another connection.
  void OnConnectionOver() noexcept {
    if (state() != QpState::kReset) set_state(QpState::kErr);
  }

  // From the CQ, under its lock.
  void RetireSend(uint32_t wqe_count) noexcept { send_.writer.RetireUpTo(wqe_count); }
  // Turns the number in the Cqe into the application's. False: the WR has been handed out already.
  bool RetireRecv(uint64_t* wr_id) noexcept {
    if (srq_ != nullptr) return srq_->Retire(wr_id);
    recv_->writer.RetireOne();
    return true;
  }
  // The session is dead: hands out the outstanding WRs that complete into `cq`, as flushed. Each once.
  size_t FlushInto(const CompletionQueueState* cq, std::span<Wc> out) noexcept;

 private:
  // One work queue and what was posted to it. wr_ids[n & mask] is that of the n-th WR.
  struct Queue {
    Queue(MappedQueue ring, const WorkQueueLimits& limits);
    std::mutex mutex;
    WorkQueueWriter writer;
    std::vector<uint64_t> wr_ids;
    uint32_t posted = 0;  // modulo 2^32, as the writer counts
    void Remember(uint64_t wr_id) noexcept {
      wr_ids[posted & (wr_ids.size() - 1)] = wr_id;
      ++posted;
    }
    // The QP has entered RESET.
    void Reset() noexcept {
      const std::lock_guard lock(mutex);
      writer.Reset();
      posted = 0;
    }
  };

  // Without `recv_ring` with an SRQ.
  QueuePairState(std::shared_ptr<PdState> pd, const QpInit& init, const v1::CreateQpReply& reply,
                 MappedQueue send_ring, const std::optional<MappedQueue>& recv_ring, uint32_t cookie);
  int Encode(const SendWr& wr) noexcept;
  // What an application must not ask of this type of QP.
  bool Allows(const SendWr& wr) const noexcept;
  size_t Flush(Queue& queue, bool is_send, std::span<Wc> out) noexcept;
  absl::Status SendError(int error_number, const SendWr& wr) const;
  void Unlink() noexcept;
  void PurgeCqs() noexcept;

  const std::shared_ptr<PdState> pd_;
  const std::shared_ptr<CompletionQueueState> send_cq_;
  const std::shared_ptr<CompletionQueueState> recv_cq_;
  const std::shared_ptr<SrqState> srq_;
  const QpType type_;
  const uint64_t handle_;
  const uint32_t qpn_;
  const QpCap cap_;
  const uint32_t doorbell_index_;
  const uint32_t cookie_;
  void* const context_;
  std::atomic<QpState> state_{QpState::kReset};
  std::atomic<bool> destroyed_{false};
  Queue send_;
  std::optional<Queue> recv_;  // none with an SRQ
};

}  // namespace rdmad::sdk
