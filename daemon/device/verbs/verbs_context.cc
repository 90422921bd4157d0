#include "daemon/device/verbs/verbs_context.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/verbs_cq.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_qp.h"

namespace rdmad::verbs {
namespace {

// The engine has nothing to do with PDs and MRs: the hardware checks keys by itself.
class VerbsPd final : public device::Pd, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsPd>> Create(std::shared_ptr<OpenContext> context) {
    RD_RETURN_IF_ERROR(context->Check("alloc_pd"));
    ibv_pd* const hw = ibv_alloc_pd(context->hw());
    if (hw == nullptr) return context->Error("alloc_pd", errno);
    return std::unique_ptr<VerbsPd>(new VerbsPd(std::move(context), hw));
  }
  ~VerbsPd() override {
    VerbsPd::CloseHardware();
    context_->Remove(HardwareKind::kPd, this);
  }
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  void CloseHardware() noexcept override {
    if (hw_ != nullptr) ibv_dealloc_pd(std::exchange(hw_, nullptr));
  }
  [[nodiscard]] ibv_pd* hw() const noexcept { return hw_; }

 private:
  VerbsPd(std::shared_ptr<OpenContext> context, ibv_pd* hw)
      : context_(std::move(context)), hw_(hw) {
    context_->Add(HardwareKind::kPd, this);
  }

  const std::shared_ptr<OpenContext> context_;
  ibv_pd* hw_;
};

class VerbsMr final : public device::Mr, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsMr>> Create(std::shared_ptr<OpenContext> context,
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
    ibv_mr* const hw =
        ibv_reg_mr_iova2(pd, init.host_addr, init.length_bytes, init.iova, init.access);
    if (hw == nullptr) return context->Error("reg_mr", errno);
    return std::unique_ptr<VerbsMr>(new VerbsMr(std::move(context), hw));
  }
  ~VerbsMr() override {
    VerbsMr::CloseHardware();
    context_->Remove(HardwareKind::kMr, this);
  }
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  void CloseHardware() noexcept override {
    if (hw_ != nullptr) ibv_dereg_mr(std::exchange(hw_, nullptr));
  }
  uint32_t lkey() const noexcept override { return lkey_; }
  uint32_t rkey() const noexcept override { return rkey_; }

 private:
  VerbsMr(std::shared_ptr<OpenContext> context, ibv_mr* hw)
      : context_(std::move(context)), hw_(hw), lkey_(hw->lkey), rkey_(hw->rkey) {
    context_->Add(HardwareKind::kMr, this);
  }

  const std::shared_ptr<OpenContext> context_;
  ibv_mr* hw_;
  const uint32_t lkey_;
  const uint32_t rkey_;
};

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
  return VerbsMr::Create(open_, static_cast<VerbsPd&>(pd).hw(), init);
}

absl::StatusOr<std::unique_ptr<device::Cq>> VerbsContext::CreateCq(uint32_t depth,
                                                                   device::CompletionSink* sink) {
  return VerbsCq::Create(open_, depth, sink);
}

absl::StatusOr<std::unique_ptr<device::Srq>> VerbsContext::CreateSrq(device::Pd&,
                                                                     const device::SrqInit&) {
  return absl::UnimplementedError(absl::StrCat("create_srq: device ", open_->device_name(),
                                               ": shared receive queues are not served yet"));
}

absl::StatusOr<std::unique_ptr<device::Qp>> VerbsContext::CreateQp(device::Pd& pd,
                                                                   const device::QpInit& init) {
  return VerbsQp::Create(open_, static_cast<VerbsPd&>(pd).hw(), init);
}

}  // namespace rdmad::verbs
