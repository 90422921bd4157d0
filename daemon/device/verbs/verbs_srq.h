// A shared receive queue of a verbs device.
//
// Its WRs complete in any order, at the QP that took them, which the completion names by number. An
// entry is free again when its completion was seen. One that a QP took and never completed, because
// it was destroyed or reset half-way through a message, is lost, as on hardware; there are twice as
// many entries as WRs, so that this does not matter soon.
//
// Thread: made and destroyed by control; everything else as device::Srq says. Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsQp;

class VerbsSrq final : public device::Srq, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsSrq>> Create(std::shared_ptr<OpenContext> context,
                                                          ibv_pd* pd, const device::SrqInit& init);
  ~VerbsSrq() override;

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  void CloseHardware() noexcept override;

  uint32_t max_wr() const noexcept override { return max_wr_; }
  uint32_t max_sge() const noexcept override { return max_sge_; }
  // On a device that is gone it takes WRs and forgets them: no QP is left to complete them. So it
  // does once the driver has refused one, of which an event tells (kSrqErr); what it had before
  // stays good.
  device::PostResult PostRecv(const device::RecvWr& wr) noexcept override;
  device::QpResult SetLimit(uint32_t limit) noexcept override;
  uint32_t limit() const noexcept override { return limit_.load(std::memory_order_relaxed); }

  // For its QPs and the data path. Engine thread.
  [[nodiscard]] ibv_srq* hw() const noexcept { return hw_; }
  [[nodiscard]] OpenContext& context() const noexcept { return *context_; }
  [[nodiscard]] uint64_t owner_token() const noexcept { return owner_token_; }
  void AddQp(VerbsQp& qp);
  void RemoveQp(const VerbsQp& qp);
  void OnCompletion(uint32_t position, const ibv_wc& wc) noexcept;
  // The chain was posted but for this receive and those after it.
  void OnRecvsRefused(const ibv_recv_wr& refused) noexcept;
  // Any engine: that which reads the asynchronous events.
  void OnLimitReached() noexcept { limit_.store(0, std::memory_order_relaxed); }

 private:
  struct Entry {
    uint64_t wr_id = 0;
    uint32_t position = 0;
    bool taken = false;
  };

  VerbsSrq(std::shared_ptr<OpenContext> context, const device::SrqInit& init, uint32_t max_wr,
           uint32_t max_sge);

  const std::shared_ptr<OpenContext> context_;
  const uint64_t owner_token_;
  const uint32_t max_wr_;
  const uint32_t max_sge_;
  ibv_srq* hw_ = nullptr;
  uint32_t slot_ = 0;
  bool active_ = false;
  bool broken_ = false;  // the driver has refused a receive
  std::atomic<uint32_t> limit_{0};

  const uint32_t mask_;
  std::unique_ptr<Entry[]> entries_;
  uint32_t next_ = 0;                           // position; its entry stands at position & mask
  uint32_t taken_ = 0;                          // entries
  std::unordered_map<uint32_t, VerbsQp*> qps_;  // by QPN
};

}  // namespace rdmad::verbs
