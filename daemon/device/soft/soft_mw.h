// A memory window of the soft device: an entry of its engine's MrTable that bind WRs fill, and of
// other engines' that its application uses.
//
// Of type 2B, as on ConnectX and rxe: it serves the QP that bound it and no other. The key is
// reserved at creation; each bind changes its low 8 bits; it goes back with the object. A QP that
// goes leaves its windows bound to nobody: they can only be deallocated.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/mr_table.h"
#include "daemon/device/soft/soft_pd.h"
#include "daemon/device/soft/transport.h"

namespace rdmad::soft {

class SoftMw final : public device::Mw {
 public:
  // Thread: control. `transport` and `pd` outlive the window.
  // Errors: ResourceExhausted (no key left).
  static absl::StatusOr<std::unique_ptr<SoftMw>> Create(Transport& transport, const SoftPd& pd);
  // Thread: control, after Deactivate().
  ~SoftMw() override;
  SoftMw(const SoftMw&) = delete;
  SoftMw& operator=(const SoftMw&) = delete;

  void Activate(device::TimeNs now) noexcept override { part_.Activate(now); }
  void Deactivate(device::TimeNs now) noexcept override { part_.Deactivate(now); }
  uint32_t rkey() const noexcept override { return first_key_; }
  // Another engine's entry of the window, which shares the keys.
  std::unique_ptr<device::EngineObject> PartIn(MrTable& table) const {
    return std::make_unique<Part>(table, *this);
  }

 private:
  // Its entry in one table.
  class Part final : public device::EngineObject {
   public:
    Part(MrTable& table, const SoftMw& window) : table_(table), window_(window) {}
    void Activate(device::TimeNs now) noexcept override;
    void Deactivate(device::TimeNs now) noexcept override;

   private:
    MrTable& table_;
    const SoftMw& window_;
  };

  SoftMw(MrTable& table, uint64_t pd_id, uint32_t key);

  MrKeys& keys_;
  const uint64_t pd_id_;
  const uint32_t first_key_;
  Part part_;
};

}  // namespace rdmad::soft
