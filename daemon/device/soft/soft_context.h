// One application's use of a soft device at one engine. Soft objects are told apart by their PD
// alone, so there is nothing to be open or closed, and contexts of one application share no more
// than their keys.
//
// Thread: control. Owner: the session; the device outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/soft_device.h"

namespace rdmad::soft {

class SoftContext final : public device::Context {
 public:
  // `use` lives as long as the context.
  SoftContext(SoftDevice& device, uint32_t engine, std::shared_ptr<void> use)
      : device_(device), engine_(engine), use_(std::move(use)) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}
  absl::StatusOr<std::unique_ptr<device::Pd>> AllocPd() override { return device_.AllocPd(); }
  absl::StatusOr<std::unique_ptr<device::Mr>> RegisterMr(device::Pd& pd,
                                                         const device::MrInit& init) override {
    return device_.RegisterMr(pd, init, engine_);
  }
  absl::StatusOr<std::unique_ptr<device::Cq>> CreateCq(uint32_t depth,
                                                       device::CompletionSink* sink) override {
    return device_.CreateCq(depth, sink);
  }
  absl::StatusOr<std::unique_ptr<device::Srq>> CreateSrq(device::Pd& pd,
                                                         const device::SrqInit& init) override {
    return device_.CreateSrq(pd, init, engine_);
  }
  absl::StatusOr<std::unique_ptr<device::Qp>> CreateQp(device::Pd& pd,
                                                       const device::QpInit& init) override {
    return device_.CreateQp(pd, init, engine_);
  }
  absl::StatusOr<std::unique_ptr<device::Ah>> CreateAh(device::Pd& pd,
                                                       const device::AddressVector& av) override {
    return device_.CreateAh(pd, av);
  }
  absl::StatusOr<std::unique_ptr<device::Mw>> AllocMw(device::Pd& pd) override {
    return device_.AllocMw(pd, engine_);
  }
  absl::StatusOr<std::unique_ptr<device::EngineObject>> AttachMulticast(
      device::Qp& qp, const IpAddress& group) override {
    return device_.AttachMulticast(qp, group, engine_);
  }
  absl::StatusOr<std::unique_ptr<device::Context>> Share(uint32_t engine) override {
    return device_.Open(engine);
  }
  std::unique_ptr<device::EngineObject> PartOf(device::Mr& mr) override {
    return device_.PartOf(mr, engine_);
  }
  std::unique_ptr<device::EngineObject> PartOf(device::Mw& mw) override {
    return device_.PartOf(mw, engine_);
  }
  // Posts take it over by value.
  std::unique_ptr<device::EngineObject> PartOf(device::Ah&) override { return nullptr; }

 private:
  SoftDevice& device_;
  const uint32_t engine_;
  const std::shared_ptr<void> use_;
};

}  // namespace rdmad::soft
