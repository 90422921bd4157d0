#include "daemon/device/verbs/verbs_mr.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/window_table.h"

namespace rdmad::verbs {
namespace {

// Pinning so much takes about a millisecond at most.
constexpr uint64_t kQuickBytes = 2 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsPd>> VerbsPd::Create(std::shared_ptr<OpenContext> context) {
  RD_RETURN_IF_ERROR(context->Check("alloc_pd"));
  ibv_pd* const hw = ibv_alloc_pd(context->hw());
  if (hw == nullptr) return context->Error("alloc_pd", errno);
  return std::unique_ptr<VerbsPd>(new VerbsPd(std::move(context), hw));
}

VerbsPd::VerbsPd(std::shared_ptr<OpenContext> context, ibv_pd* hw)
    : context_(std::move(context)), hw_(hw) {
  context_->Add(HardwareKind::kPd, this);
}

VerbsPd::~VerbsPd() {
  CloseHardware();
  context_->Remove(HardwareKind::kPd, this);
}

void VerbsPd::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_dealloc_pd(std::exchange(hw_, nullptr));
}

absl::StatusOr<std::unique_ptr<VerbsMr>> VerbsMr::Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd, const device::MrInit& init) {
  RD_RETURN_IF_ERROR(context->Check("reg_mr"));
  if (init.length_bytes > context->attr().max_mr_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("reg_mr: length_bytes=", init.length_bytes,
                                                   " device_max=", context->attr().max_mr_bytes));
  }
  if ((init.access & (device::kAccessRemoteWrite | device::kAccessRemoteAtomic)) != 0 &&
      (init.access & device::kAccessLocalWrite) == 0) {
    return absl::InvalidArgumentError(
        "reg_mr: remote write and remote atomic access need local write access too");
  }
  return std::unique_ptr<VerbsMr>(new VerbsMr(std::move(context), pd, init));
}

VerbsMr::VerbsMr(std::shared_ptr<OpenContext> context, ibv_pd* pd, const device::MrInit& init)
    : context_(std::move(context)), pd_(pd), init_(init) {
  context_->Add(HardwareKind::kMr, this);
}

bool VerbsMr::slow() const noexcept {
  return init_.length_bytes > kQuickBytes;
}

absl::Status VerbsMr::Prepare() {
  const OpenContext::Use use(*context_);
  if (!use.entered()) return context_->Removed("reg_mr");
  hw_ = ibv_reg_mr_iova2(pd_, init_.host_addr, init_.length_bytes, init_.iova, init_.access);
  if (hw_ == nullptr) return context_->Error("reg_mr", errno);
  lkey_ = hw_->lkey;
  rkey_ = hw_->rkey;
  if (!use.closing()) return absl::OkStatus();
  CloseHardware();
  return context_->Removed("reg_mr");
}

void VerbsMr::Release() noexcept {
  const OpenContext::Use use(*context_);
  if (use.entered()) CloseHardware();
}

VerbsMr::~VerbsMr() {
  CloseHardware();
  context_->Remove(HardwareKind::kMr, this);
}

void VerbsMr::Activate(device::TimeNs) noexcept {
  EnterInto(*context_);
}

void VerbsMr::Deactivate(device::TimeNs) noexcept {
  LeaveFrom(*context_);
}

void VerbsMr::EnterInto(OpenContext& context) const noexcept {
  if (bindable() && !context.dead()) context.windows().AddRegion(lkey_, hw_);
}

void VerbsMr::LeaveFrom(OpenContext& context) const noexcept {
  if (!bindable()) return;
  // Only then are all QPs and windows to be looked at.
  const bool named = context.windows().RemoveRegion(lkey_);
  if (!named || context.dead()) return;
  context.path().NoteBindsTo(context, lkey_);
  context.windows().CloseBoundTo(lkey_);
}

class VerbsMr::Part final : public device::EngineObject {
 public:
  Part(const VerbsMr& region, std::shared_ptr<OpenContext> context)
      : region_(region), context_(std::move(context)) {}
  void Activate(device::TimeNs) noexcept override { region_.EnterInto(*context_); }
  void Deactivate(device::TimeNs) noexcept override { region_.LeaveFrom(*context_); }

 private:
  const VerbsMr& region_;
  const std::shared_ptr<OpenContext> context_;
};

std::unique_ptr<device::EngineObject> VerbsMr::PartIn(std::shared_ptr<OpenContext> context) const {
  if (!bindable()) return nullptr;
  return std::make_unique<Part>(*this, std::move(context));
}

void VerbsMr::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_dereg_mr(std::exchange(hw_, nullptr));
}

}  // namespace rdmad::verbs
