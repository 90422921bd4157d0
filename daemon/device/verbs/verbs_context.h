// A session's use of a verbs device: an ibv_context of its own, so that the hardware keeps sessions
// apart and nothing of one is left when its context is closed.
//
// Thread: as device::Context says. Owner: the session.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsContext final : public device::Context {
 public:
  explicit VerbsContext(std::shared_ptr<OpenContext> open) : open_(std::move(open)) {}

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;

  absl::StatusOr<std::unique_ptr<device::Pd>> AllocPd() override;
  absl::StatusOr<std::unique_ptr<device::Mr>> RegisterMr(device::Pd& pd,
                                                         const device::MrInit& init) override;
  absl::StatusOr<std::unique_ptr<device::Cq>> CreateCq(uint32_t depth,
                                                       device::CompletionSink* sink) override;
  absl::StatusOr<std::unique_ptr<device::Srq>> CreateSrq(device::Pd& pd,
                                                         const device::SrqInit& init) override;
  absl::StatusOr<std::unique_ptr<device::Qp>> CreateQp(device::Pd& pd,
                                                       const device::QpInit& init) override;
  absl::StatusOr<std::unique_ptr<device::Ah>> CreateAh(device::Pd& pd,
                                                       const device::AddressVector& av) override;
  absl::StatusOr<std::unique_ptr<device::Mw>> AllocMw(device::Pd& pd) override;
  absl::StatusOr<std::unique_ptr<device::EngineObject>> AttachMulticast(
      device::Qp& qp, const IpAddress& group) override;

 private:
  const std::shared_ptr<OpenContext> open_;
};

}  // namespace rdmad::verbs
