#include "daemon/device/verbs/verbs_context.h"

#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/verbs_ah.h"
#include "daemon/device/verbs/verbs_cq.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_mr.h"
#include "daemon/device/verbs/verbs_multicast.h"
#include "daemon/device/verbs/verbs_mw.h"
#include "daemon/device/verbs/verbs_qp.h"
#include "daemon/device/verbs/verbs_srq.h"

namespace rdmad::verbs {
namespace {

ibv_pd* HardwareOf(device::Pd& pd) {
  return static_cast<VerbsPd&>(pd).hw();
}

}  // namespace

void VerbsContext::Activate(device::TimeNs) noexcept {
  open_->path().AddContext(*open_);
}

void VerbsContext::Deactivate(device::TimeNs) noexcept {
  open_->path().RemoveContext(*open_);
}

absl::StatusOr<std::unique_ptr<device::Pd>> VerbsContext::AllocPd() {
  return VerbsPd::Create(open_);
}

absl::StatusOr<std::unique_ptr<device::Mr>> VerbsContext::RegisterMr(device::Pd& pd,
                                                                     const device::MrInit& init) {
  return VerbsMr::Create(open_, HardwareOf(pd), init);
}

absl::StatusOr<std::unique_ptr<device::Cq>> VerbsContext::CreateCq(uint32_t depth,
                                                                   device::CompletionSink* sink) {
  return VerbsCq::Create(open_, depth, sink);
}

absl::StatusOr<std::unique_ptr<device::Srq>> VerbsContext::CreateSrq(device::Pd& pd,
                                                                     const device::SrqInit& init) {
  return VerbsSrq::Create(open_, HardwareOf(pd), init);
}

absl::StatusOr<std::unique_ptr<device::Qp>> VerbsContext::CreateQp(device::Pd& pd,
                                                                   const device::QpInit& init) {
  return VerbsQp::Create(open_, HardwareOf(pd), init);
}

absl::StatusOr<std::unique_ptr<device::Ah>> VerbsContext::CreateAh(
    device::Pd& pd, const device::AddressVector& av) {
  return VerbsAh::Create(open_, HardwareOf(pd), av);
}

absl::StatusOr<std::unique_ptr<device::Mw>> VerbsContext::AllocMw(device::Pd& pd) {
  return VerbsMw::Alloc(open_, HardwareOf(pd));
}

absl::StatusOr<std::unique_ptr<device::EngineObject>> VerbsContext::AttachMulticast(
    device::Qp& qp, const IpAddress& group) {
  return VerbsMulticast::Attach(open_, static_cast<VerbsQp&>(qp), group);
}

absl::StatusOr<std::unique_ptr<device::Context>> VerbsContext::Share(uint32_t engine) {
  RD_ASSIGN_OR_RETURN(std::shared_ptr<OpenContext> other, open_->Share(paths_[engine]));
  return std::make_unique<VerbsContext>(std::move(other), paths_);
}

std::unique_ptr<device::EngineObject> VerbsContext::PartOf(device::Mr& mr) {
  return static_cast<VerbsMr&>(mr).PartIn(open_);
}

std::unique_ptr<device::EngineObject> VerbsContext::PartOf(device::Mw& mw) {
  return static_cast<VerbsMw&>(mw).PartIn(open_);
}

std::unique_ptr<device::EngineObject> VerbsContext::PartOf(device::Ah&) {
  return VerbsAh::PartIn(open_);
}

}  // namespace rdmad::verbs
