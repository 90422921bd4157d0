#include "daemon/device/verbs/verbs_cq.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/verbs_data_path.h"

namespace rdmad::verbs {

absl::StatusOr<std::unique_ptr<VerbsCq>> VerbsCq::Create(std::shared_ptr<OpenContext> context,
                                                         uint32_t depth,
                                                         device::CompletionSink* sink) {
  RD_RETURN_IF_ERROR(context->Check("create_cq"));
  if (depth == 0 || depth > context->attr().max_cqe) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_cq: depth=", depth, " device_max=", context->attr().max_cqe));
  }
  std::unique_ptr<VerbsCq> cq(new VerbsCq(std::move(context), sink));
  OpenContext& open = *cq->context_;
  // Which of the hardware's vectors interrupts: by the engine, so that each has its own, and not
  // the one that the application named, since most name the first.
  const int vector =
      static_cast<int>(open.path().engine()) % std::max(open.hw()->num_comp_vectors, 1);
  cq->hw_ = ibv_create_cq(open.hw(), static_cast<int>(depth), cq.get(), open.channel(), vector);
  if (cq->hw_ == nullptr) return open.Error("create_cq", errno);
  open.Add(HardwareKind::kCq, cq.get());
  return cq;
}

VerbsCq::~VerbsCq() {
  RD_CHECK(!active, "the engine lets go of a CQ before control frees it");
  CloseHardware();
  context_->Remove(HardwareKind::kCq, this);
}

void VerbsCq::Activate(device::TimeNs) noexcept {
  context_->path().AddCq(*this);
}

void VerbsCq::Deactivate(device::TimeNs) noexcept {
  context_->path().RemoveCq(*this);
}

void VerbsCq::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_destroy_cq(std::exchange(hw_, nullptr));
}

}  // namespace rdmad::verbs
