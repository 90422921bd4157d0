// A memory region of the soft device: an entry of its engine's MrTable, and of other engines' that
// its application uses.
//
// The key is reserved at creation, valid from Activate() to Deactivate(), and goes back with the
// object.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/mr_table.h"
#include "daemon/device/soft/soft_pd.h"
#include "daemon/device/soft/transport.h"

namespace rdmad::soft {

class SoftMr final : public device::Mr {
 public:
  // Thread: control. `transport` and `pd` outlive the region.
  // Errors: InvalidArgument (no bytes, a range that wraps, unknown access bits, remote write or
  // atomic without local write); ResourceExhausted (no key left).
  static absl::StatusOr<std::unique_ptr<SoftMr>> Create(Transport& transport, const SoftPd& pd,
                                                        const device::MrInit& init);
  // Thread: control, after Deactivate().
  ~SoftMr() override;
  SoftMr(const SoftMr&) = delete;
  SoftMr& operator=(const SoftMr&) = delete;

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  uint32_t lkey() const noexcept override { return entry_.key; }
  uint32_t rkey() const noexcept override { return entry_.key; }
  // Another engine's entry of the region, which shares the keys.
  std::unique_ptr<device::EngineObject> PartIn(MrTable& table) const;

 private:
  SoftMr(MrTable& table, const MrEntry& entry) : table_(table), entry_(entry) {}

  MrTable& table_;
  const MrEntry entry_;
};

}  // namespace rdmad::soft
