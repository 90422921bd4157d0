// An address handle of a verbs device.
//
// Thread: made and destroyed by control; the engine posts with it. Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsAh final : public device::Ah, public HardwareObject {
 public:
  // The kernel looks for the destination's neighbour meanwhile, which may take up to a second.
  // Errors: InvalidArgument also for a destination that does not answer.
  static absl::StatusOr<std::unique_ptr<VerbsAh>> Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd,
                                                         const device::AddressVector& av);
  ~VerbsAh() override;

  void Activate(device::TimeNs) noexcept override {}
  // Sends that wait to be posted with it are posted.
  void Deactivate(device::TimeNs now) noexcept override;
  void CloseHardware() noexcept override;

  [[nodiscard]] ibv_ah* hw() const noexcept { return hw_; }

 private:
  VerbsAh(std::shared_ptr<OpenContext> context, ibv_ah* hw);

  const std::shared_ptr<OpenContext> context_;
  ibv_ah* hw_;
};

}  // namespace rdmad::verbs
