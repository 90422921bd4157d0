// An address handle of a verbs device.
//
// Thread: made and destroyed by control, prepared anywhere; the engine posts with it. Owner: the
// session.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsAh final : public device::Ah, public HardwareObject {
 public:
  // Errors: InvalidArgument also for a destination that does not answer.
  static absl::StatusOr<std::unique_ptr<VerbsAh>> Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd,
                                                         const device::AddressVector& av);
  ~VerbsAh() override;

  // The kernel asks for the destination's neighbour, which may take up to a second.
  bool slow() const noexcept override { return true; }
  absl::Status Prepare() override;

  void Activate(device::TimeNs) noexcept override {}
  // Sends that wait to be posted with it are posted.
  void Deactivate(device::TimeNs now) noexcept override;
  // The same, of another engine.
  static std::unique_ptr<device::EngineObject> PartIn(std::shared_ptr<OpenContext> context);
  void CloseHardware() noexcept override;

  [[nodiscard]] ibv_ah* hw() const noexcept { return hw_; }

 private:
  VerbsAh(std::shared_ptr<OpenContext> context, ibv_pd* pd, const device::AddressVector& av);

  const std::shared_ptr<OpenContext> context_;
  ibv_pd* const pd_;
  const device::AddressVector av_;
  ibv_ah* hw_ = nullptr;
};

}  // namespace rdmad::verbs
