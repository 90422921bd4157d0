// Shared receive queues, client side: posting, depth accounting, and what becomes of WRs when the daemon dies.
//
// Completions of an SRQ come in any order, by way of any QP that uses it, and some never come (their QP was destroyed). So
// each WR gets a *place*, whose number stands in the slot instead of the application's wr_id, and comes back in the Cqe. A
// place is free again when that Cqe was polled or dropped: at that time the device has long let go of the WR. There are as
// many places as the SRQ has depth, so neither the ring nor the device's queue can overflow.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/protection_domain.h"
#include "client/sdk/ring/work_queue_writer.h"
#include "client/sdk/session.h"
#include "rdmad/verbs.h"

namespace rdmad::sdk {

// The WRs that are outstanding, oldest first, and the places that are free. No allocation but at the start.
class SrqPlaces {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit SrqPlaces(uint32_t depth);

  // A place for a WR; kNone if all are taken.
  uint32_t Take(uint64_t wr_id) noexcept;
  // False: nobody has that place. Otherwise it is free, and `wr_id` is what Take was given.
  bool Free(uint64_t place, uint64_t* wr_id) noexcept;
  // The one that was taken first; kNone: all are free.
  uint32_t oldest() const noexcept { return oldest_; }

 private:
  struct Place {
    uint64_t wr_id = 0;
    uint32_t next = kNone;  // of those taken the next newer one, or of those free any other
    uint32_t previous = kNone;
    bool taken = false;
  };
  std::vector<Place> places_;
  uint32_t free_ = kNone;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
};

// Thread: any; one lock, which comes after those of CQs. Owner: handles, and the QPs that use it.
class SrqState {
 public:
  static absl::StatusOr<std::shared_ptr<SrqState>> Create(const std::shared_ptr<PdState>& pd, const SrqInit& init);
  ~SrqState();
  SrqState(const SrqState&) = delete;
  SrqState& operator=(const SrqState&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return pd_->session(); }
  const std::shared_ptr<PdState>& pd() const noexcept { return pd_; }
  uint64_t handle() const noexcept { return handle_; }
  uint32_t max_wr() const noexcept { return max_wr_; }
  uint32_t max_sge() const noexcept { return max_sge_; }
  void* context() const noexcept { return context_; }
  // Until its first QP, what its maker said; then the one of that QP's CQs.
  uint32_t comp_vector() const noexcept { return comp_vector_.load(std::memory_order_relaxed); }

  absl::Status PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept;
  absl::Status Modify(uint32_t limit);
  absl::StatusOr<SrqAttr> Query();
  absl::Status Destroy();

  // A QP begins, or ends, to use it. The daemon looks for receives by this doorbell.
  void Attach(const Lane& lane, uint32_t comp_vector, uint32_t doorbell_index) noexcept;
  void Detach() noexcept { users_.fetch_sub(1, std::memory_order_relaxed); }

  // A completion with this Cqe::wr_id was polled or dropped: turns it into the application's number. False: that place is
  // free, since it was flushed by way of another CQ.
  bool Retire(uint64_t* wr_id) noexcept;
  // The session is dead: hands out the outstanding WRs as flushed, in the name of QP `qpn`. Each once.
  size_t FlushInto(uint32_t qpn, std::span<Wc> out) noexcept;

 private:
  SrqState(std::shared_ptr<PdState> pd, const v1::CreateSrqReply& reply, MappedQueue ring, const Lane& lane,
           const SrqInit& init);

  const std::shared_ptr<PdState> pd_;
  const uint64_t handle_;
  const uint32_t max_wr_;
  const uint32_t max_sge_;
  void* const context_;
  std::atomic<uint32_t> comp_vector_;
  std::atomic<uint32_t> users_{0};
  std::mutex mutex_;  // guards everything below
  const Lane* lane_;
  uint32_t doorbell_index_;
  WorkQueueWriter writer_;
  SrqPlaces places_;
  bool destroyed_ = false;
};

}  // namespace rdmad::sdk
