// A memory window of type 2 of a verbs device, and the table that knows it.
//
// Drivers take the window's present key from ibv_mw::rkey when a bind is posted, and leave it to us
// to write the new one there. It is written at once, since binds may follow each other without
// waiting, and taken back when a bind fails.
//
// Of several engines that may bind it, the first that tries has it for good: its bookkeeping is one
// engine's. The others do not find it.
//
// Thread: made and destroyed by control; everything else is the engine's. Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
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
  std::unique_ptr<device::EngineObject> PartIn(std::shared_ptr<OpenContext> context);

  // Whose it is; and whether it is this table's from now on, if it was nobody's. Any engine.
  [[nodiscard]] bool IsOf(const WindowTable& table) const noexcept {
    return table_.load(std::memory_order_relaxed) == &table;
  }
  [[nodiscard]] bool Claim(const WindowTable& table) noexcept {
    const WindowTable* nobody = nullptr;
    return table_.compare_exchange_strong(nobody, &table, std::memory_order_relaxed) ||
           nobody == &table;
  }

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
  std::atomic<const WindowTable*> table_{nullptr};
  ibv_mw* hw_;
  const uint32_t first_key_;
  uint32_t key_;                 // of the last bind that succeeded
  const VerbsQp* qp_ = nullptr;  // null: bound to nothing
  uint32_t lkey_ = 0;
};

}  // namespace rdmad::verbs
