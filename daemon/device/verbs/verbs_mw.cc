#include "daemon/device/verbs/verbs_mw.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/window_table.h"

namespace rdmad::verbs {

// ---- the table ----

VerbsMw* WindowTable::FindWindow(uint32_t rkey) const noexcept {
  const auto found = windows_.find(rkey >> kTagBits);
  return found == windows_.end() || !found->second->Claim(*this) ? nullptr : found->second;
}

ibv_mr* WindowTable::FindRegion(uint32_t lkey) const noexcept {
  const auto found = regions_.find(lkey);
  return found == regions_.end() ? nullptr : found->second.hw;
}

bool WindowTable::RemoveRegion(uint32_t lkey) {
  const auto found = regions_.find(lkey);
  if (found == regions_.end()) return false;
  const bool named = found->second.named;
  regions_.erase(found);
  return named;
}

void WindowTable::CloseBoundBy(const VerbsQp& qp) noexcept {
  for (const auto& [key, window] : windows_) {
    if (window->IsOf(*this) && window->IsBoundBy(qp)) window->CloseHardware();
  }
}

void WindowTable::CloseBoundTo(uint32_t lkey) noexcept {
  for (const auto& [key, window] : windows_) {
    if (window->IsOf(*this) && window->IsBoundTo(lkey)) window->CloseHardware();
  }
}

// ---- the window ----

absl::StatusOr<std::unique_ptr<VerbsMw>> VerbsMw::Alloc(std::shared_ptr<OpenContext> context,
                                                        ibv_pd* pd) {
  RD_RETURN_IF_ERROR(context->Check("alloc_mw"));
  if (context->attr().max_mw == 0) {
    return absl::UnimplementedError(absl::StrCat("alloc_mw: device ", context->device_name(),
                                                 " has no memory windows of type 2"));
  }
  ibv_mw* const hw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  if (hw == nullptr) return context->Error("alloc_mw", errno);
  return std::unique_ptr<VerbsMw>(new VerbsMw(std::move(context), hw));
}

VerbsMw::VerbsMw(std::shared_ptr<OpenContext> context, ibv_mw* hw)
    : context_(std::move(context)), hw_(hw), first_key_(hw->rkey), key_(hw->rkey) {
  context_->Add(HardwareKind::kMw, this);
}

VerbsMw::~VerbsMw() {
  CloseHardware();
  context_->Remove(HardwareKind::kMw, this);
}

void VerbsMw::Activate(device::TimeNs) noexcept {
  context_->windows().AddWindow(first_key_, *this);
}

void VerbsMw::Deactivate(device::TimeNs) noexcept {
  context_->windows().RemoveWindow(first_key_);
}

std::unique_ptr<device::EngineObject> VerbsMw::PartIn(std::shared_ptr<OpenContext> context) {
  class Part final : public device::EngineObject {
   public:
    Part(VerbsMw& window, std::shared_ptr<OpenContext> context)
        : window_(window), context_(std::move(context)) {}
    void Activate(device::TimeNs) noexcept override {
      context_->windows().AddWindow(window_.first_key_, window_);
    }
    void Deactivate(device::TimeNs) noexcept override {
      context_->windows().RemoveWindow(window_.first_key_);
    }

   private:
    VerbsMw& window_;
    const std::shared_ptr<OpenContext> context_;
  };
  return std::make_unique<Part>(*this, std::move(context));
}

void VerbsMw::CloseHardware() noexcept {
  qp_ = nullptr;
  if (hw_ != nullptr) ibv_dealloc_mw(std::exchange(hw_, nullptr));
}

void VerbsMw::OnBound(uint32_t key, const VerbsQp& qp, uint32_t lkey) noexcept {
  key_ = key;
  MayBeBound(qp, lkey);
}

void VerbsMw::MayBeBound(const VerbsQp& qp, uint32_t lkey) noexcept {
  if (hw_ == nullptr) return;
  qp_ = &qp;
  lkey_ = lkey;
}

}  // namespace rdmad::verbs
