// Protection domains and memory regions of a verbs device. The hardware checks keys by itself, so
// the engine has to do with a region only where memory windows are bound to it.
//
// Thread: made and destroyed by control; regions are prepared and released anywhere. Owner: the
// session.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsPd final : public device::Pd, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsPd>> Create(std::shared_ptr<OpenContext> context);
  ~VerbsPd() override;

  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  void CloseHardware() noexcept override;
  [[nodiscard]] ibv_pd* hw() const noexcept { return hw_; }

 private:
  VerbsPd(std::shared_ptr<OpenContext> context, ibv_pd* hw);

  const std::shared_ptr<OpenContext> context_;
  ibv_pd* hw_;
};

class VerbsMr final : public device::Mr, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsMr>> Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd, const device::MrInit& init);
  ~VerbsMr() override;

  bool slow() const noexcept override;
  // Pins the pages, at about a second for some gigabytes; and unpins them.
  absl::Status Prepare() override;
  void Release() noexcept override;

  // Windows can be bound to it from now on; and not any more, and those that are close.
  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  void CloseHardware() noexcept override;
  uint32_t lkey() const noexcept override { return lkey_; }
  uint32_t rkey() const noexcept override { return rkey_; }
  // Null: only windows are of interest to an engine, and none can be bound to it.
  std::unique_ptr<device::EngineObject> PartIn(std::shared_ptr<OpenContext> context) const;

 private:
  class Part;
  VerbsMr(std::shared_ptr<OpenContext> context, ibv_pd* pd, const device::MrInit& init);
  bool bindable() const noexcept { return (init_.access & device::kAccessMwBind) != 0; }
  void EnterInto(OpenContext& context) const noexcept;
  void LeaveFrom(OpenContext& context) const noexcept;

  const std::shared_ptr<OpenContext> context_;
  ibv_pd* const pd_;
  const device::MrInit init_;
  ibv_mr* hw_ = nullptr;
  uint32_t lkey_ = 0;
  uint32_t rkey_ = 0;
};

}  // namespace rdmad::verbs
