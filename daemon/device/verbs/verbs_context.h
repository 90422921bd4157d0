// A session's use of a verbs device at one engine: the session has an ibv_context of its own, so
// that the hardware keeps sessions apart and nothing of one is left when its context is closed.
//
// Thread: as device::Context says. Owner: the session.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsContext final : public device::Context {
 public:
  // `paths` are the engines', by their index, and outlive the context.
  VerbsContext(std::shared_ptr<OpenContext> open, std::vector<VerbsDataPath*> paths)
      : open_(std::move(open)), paths_(std::move(paths)) {}

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
  absl::StatusOr<std::unique_ptr<device::Context>> Share(uint32_t engine) override;
  std::unique_ptr<device::EngineObject> PartOf(device::Mr& mr) override;
  std::unique_ptr<device::EngineObject> PartOf(device::Mw& mw) override;
  std::unique_ptr<device::EngineObject> PartOf(device::Ah& ah) override;

 private:
  const std::shared_ptr<OpenContext> open_;
  const std::vector<VerbsDataPath*> paths_;
};

}  // namespace rdmad::verbs
