// A shared receive queue of the soft device: receives that go to whichever of its QPs needs one
// next.
//
// The limit is looked at whenever a QP takes a receive or finds none, so an application that arms
// it on an empty queue hears of it with the next message, and not already while it fills the queue.
// Its PD decides about the receives' keys, not that of the QP that takes them.
//
// Thread: engine, but for construction and destruction. Owner: the control side; its QPs are gone
// before it. Source: ibv_modify_srq(3); IBTA vol. 1, Shared Receive Queue.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/active_list.h"
#include "daemon/device/soft/receive_queue.h"
#include "daemon/device/soft/soft_pd.h"

namespace rdmad::soft {

class SoftSrq final : public device::Srq {
 public:
  // Thread: control. `async` outlives it. `lease` lives as long as the SRQ.
  // Errors: InvalidArgument (a value over limits.h; says which, asked and limit).
  static absl::StatusOr<std::unique_ptr<SoftSrq>> Create(device::AsyncSink* async, const SoftPd& pd,
                                                         const device::SrqInit& init,
                                                         std::shared_ptr<const void> lease = {});

  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override;
  uint32_t max_wr() const noexcept override { return init_.max_wr; }
  uint32_t max_sge() const noexcept override { return init_.max_sge; }
  [[nodiscard]] device::PostResult PostRecv(const device::RecvWr& wr) noexcept override;
  [[nodiscard]] device::QpResult SetLimit(uint32_t limit) noexcept override;
  uint32_t limit() const noexcept override { return limit_; }
  void SetReceiveSource(device::ReceiveSource* source) noexcept override { source_ = source; }

  // For its QPs. False: there is none.
  bool Take(ReceiveWqe* out) noexcept;
  // The QP's OnReceivePosted() is called with the next receive that is posted, once. Nodes of QPs
  // that wait already stay where they are; a QP takes its node out before it dies.
  void AddWaiter(ActiveNode& node) noexcept { waiters_.Push(node); }
  void RemoveWaiter(ActiveNode& node) noexcept { waiters_.Remove(node); }
  uint64_t pd_id() const noexcept { return pd_id_; }

 private:
  SoftSrq(device::AsyncSink* async, const SoftPd& pd, const device::SrqInit& init,
          std::shared_ptr<const void> lease);

  device::AsyncSink* const async_;
  const uint64_t pd_id_;
  const device::SrqInit init_;
  const std::shared_ptr<const void> lease_;
  ReceiveQueue queue_;
  device::ReceiveSource* source_ = nullptr;
  uint32_t limit_ = 0;
  ActiveList waiters_;
};

}  // namespace rdmad::soft
