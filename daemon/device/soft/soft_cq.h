// A completion queue of the soft device: where the engine keeps completions is the sink's business,
// so this is a name for the sink. The sink must take completions in any number; a CQ that overflows
// is the sink's to report.
#pragma once

#include <cstdint>

#include "daemon/device/device.h"

namespace rdmad::soft {

// Not final: the device derives from it, to know when one has gone.
class SoftCq : public device::Cq {
 public:
  // `sink` outlives the CQ.
  SoftCq(uint32_t depth, device::CompletionSink* sink) : depth_(depth), sink_(sink) {}
  void Activate(device::TimeNs) noexcept override {}
  void Deactivate(device::TimeNs) noexcept override {}

  uint32_t depth() const noexcept { return depth_; }
  // Engine thread.
  void Push(const device::Wc& wc) noexcept { sink_->OnCompletion(wc); }

 private:
  const uint32_t depth_;
  device::CompletionSink* const sink_;
};

}  // namespace rdmad::soft
