#include "daemon/device/verbs/verbs_ah.h"

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/qp_attr.h"
#include "daemon/device/verbs/verbs_data_path.h"

namespace rdmad::verbs {
namespace {

constexpr uint8_t kPort = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsAh>> VerbsAh::Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd,
                                                         const device::AddressVector& av) {
  RD_RETURN_IF_ERROR(context->Check("create_ah"));
  if (av.sgid_index > UINT8_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_ah: sgid_index=", av.sgid_index, " limit=", UINT8_MAX));
  }
  ibv_ah_attr attr = ToIbv(av, kPort);
  ibv_ah* const hw = ibv_create_ah(pd, &attr);
  if (hw == nullptr) {
    const int error = errno;
    const absl::Status status = context->Error("create_ah", error);
    return absl::Status(status.code(),
                        absl::StrCat(std::string(status.message()), ": dest=", av.dest.ToString(),
                                     " sgid_index=", av.sgid_index));
  }
  return std::unique_ptr<VerbsAh>(new VerbsAh(std::move(context), hw));
}

VerbsAh::VerbsAh(std::shared_ptr<OpenContext> context, ibv_ah* hw)
    : context_(std::move(context)), hw_(hw) {
  context_->Add(HardwareKind::kAh, this);
}

VerbsAh::~VerbsAh() {
  CloseHardware();
  context_->Remove(HardwareKind::kAh, this);
}

void VerbsAh::Deactivate(device::TimeNs) noexcept {
  context_->path().FlushSends();
}

void VerbsAh::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_destroy_ah(std::exchange(hw_, nullptr));
}

}  // namespace rdmad::verbs
