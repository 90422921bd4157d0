// A memory window of type 2 of a verbs device, and the table that knows it.
//
// Drivers take the window's present key from ibv_mw::rkey when a bind is posted, and leave it to us
// to write the new one there. It is written at once, since binds may follow each other without
// waiting, and taken back when a bind fails.
//
// Thread: made and destroyed by control; everything else is the engine's. Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsQp;

class VerbsMw final : public device::Mw, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsMw>> Alloc(std::shared_ptr<OpenContext> context,
                                                        ibv_pd* pd);
  ~VerbsMw() override;

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  void CloseHardware() noexcept override;
  uint32_t rkey() const noexcept override { return first_key_; }

  // Null once what it was bound to has gone.
  [[nodiscard]] ibv_mw* hw() const noexcept { return hw_; }
  void OnBindPosted(uint32_t key) noexcept { hw_->rkey = key; }
  void OnBindFailed() noexcept {
    if (hw_ != nullptr) hw_->rkey = key_;
  }
  void OnBound(uint32_t key, const VerbsQp& qp, uint32_t lkey) noexcept;
  // It may be bound so, or become it.
  void MayBeBound(const VerbsQp& qp, uint32_t lkey) noexcept;
  void OnInvalidated() noexcept { qp_ = nullptr; }
  [[nodiscard]] bool IsBoundBy(const VerbsQp& qp) const noexcept { return qp_ == &qp; }
  [[nodiscard]] bool IsBoundTo(uint32_t lkey) const noexcept {
    return qp_ != nullptr && lkey_ == lkey;
  }

 private:
  VerbsMw(std::shared_ptr<OpenContext> context, ibv_mw* hw);

  const std::shared_ptr<OpenContext> context_;
  ibv_mw* hw_;
  const uint32_t first_key_;
  uint32_t key_;                 // of the last bind that succeeded
  const VerbsQp* qp_ = nullptr;  // null: bound to nothing
  uint32_t lkey_ = 0;
};

}  // namespace rdmad::verbs
