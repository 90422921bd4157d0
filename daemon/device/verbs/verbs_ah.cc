#include "daemon/device/verbs/verbs_ah.h"

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/qp_attr.h"
#include "daemon/device/verbs/verbs_data_path.h"

namespace rdmad::verbs {

absl::StatusOr<std::unique_ptr<VerbsAh>> VerbsAh::Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd,
                                                         const device::AddressVector& av) {
  RD_RETURN_IF_ERROR(context->Check("create_ah"));
  if (av.sgid_index > UINT8_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_ah: sgid_index=", av.sgid_index, " limit=", UINT8_MAX));
  }
  return std::unique_ptr<VerbsAh>(new VerbsAh(std::move(context), pd, av));
}

VerbsAh::VerbsAh(std::shared_ptr<OpenContext> context, ibv_pd* pd, const device::AddressVector& av)
    : context_(std::move(context)), pd_(pd), av_(av) {
  context_->Add(HardwareKind::kAh, this);
}

absl::Status VerbsAh::Prepare() {
  const OpenContext::Use use(*context_);
  if (!use.entered()) return context_->Removed("create_ah");
  ibv_ah_attr attr = ToIbv(av_, context_->port());
  hw_ = ibv_create_ah(pd_, &attr);
  if (hw_ == nullptr) {
    const absl::Status status = context_->Error("create_ah", errno);
    return absl::Status(status.code(),
                        absl::StrCat(std::string(status.message()), ": dest=", av_.dest.ToString(),
                                     " sgid_index=", av_.sgid_index));
  }
  if (!use.closing()) return absl::OkStatus();
  CloseHardware();
  return context_->Removed("create_ah");
}

VerbsAh::~VerbsAh() {
  CloseHardware();
  context_->Remove(HardwareKind::kAh, this);
}

void VerbsAh::Deactivate(device::TimeNs) noexcept {
  context_->path().FlushSends();
}

std::unique_ptr<device::EngineObject> VerbsAh::PartIn(std::shared_ptr<OpenContext> context) {
  class Part final : public device::EngineObject {
   public:
    explicit Part(std::shared_ptr<OpenContext> context) : context_(std::move(context)) {}
    void Activate(device::TimeNs) noexcept override {}
    void Deactivate(device::TimeNs) noexcept override { context_->path().FlushSends(); }

   private:
    const std::shared_ptr<OpenContext> context_;
  };
  return std::make_unique<Part>(std::move(context));
}

void VerbsAh::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_destroy_ah(std::exchange(hw_, nullptr));
}

}  // namespace rdmad::verbs
