// A completion queue of a verbs device.
//
// Thread: made and destroyed by control; everything else is the engine's, by way of VerbsDataPath.
// Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsCq final : public device::Cq, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsCq>> Create(std::shared_ptr<OpenContext> context,
                                                         uint32_t depth,
                                                         device::CompletionSink* sink);
  ~VerbsCq() override;

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  void CloseHardware() noexcept override;

  [[nodiscard]] ibv_cq* hw() const noexcept { return hw_; }
  [[nodiscard]] OpenContext& context() const noexcept { return *context_; }
  [[nodiscard]] device::CompletionSink& sink() const noexcept { return *sink_; }

  // By the engine that reads the asynchronous events, for the one that drives the CQ, which takes it
  // back: the hardware has given up on it.
  std::atomic<bool> broken = false;

  // The data path's notes.
  bool active = false;
  size_t place = 0;  // among the path's
  bool hot = false;
  device::TimeNs last_completion = 0;

 private:
  VerbsCq(std::shared_ptr<OpenContext> context, device::CompletionSink* sink)
      : context_(std::move(context)), sink_(sink) {}

  const std::shared_ptr<OpenContext> context_;
  device::CompletionSink* const sink_;
  ibv_cq* hw_ = nullptr;
};

}  // namespace rdmad::verbs
