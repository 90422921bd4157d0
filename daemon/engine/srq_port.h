// A shared receive queue at an engine: takes receive WRs from its ring and posts them to the
// device's SRQ.
//
// A ring that makes no sense, or a WR that the SRQ refuses, concerns every QP that shares it: the
// session is reported corrupt.
#pragma once

#include <cstdint>

#include "daemon/engine/engine_context.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_port.h"
#include "daemon/engine/work_queue_reader.h"

namespace rdmad::engine {

class ShmSrqPort final : public SrqPort, public WorkSource, private device::ReceiveSource {
 public:
  ShmSrqPort(EngineContext& context, const SrqPortInit& init);

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  DrainResult Drain(uint32_t budget, device::TimeNs now) noexcept override;

 private:
  void PostReceives() noexcept override;
  void Break(const char* what) noexcept;

  EngineContext& context_;
  ShmSessionPort& session_;
  device::Srq& srq_;
  const uint32_t doorbell_index_;
  WorkQueueReader recvs_;
  bool broken_ = false;
  EventSource events_;
};

}  // namespace rdmad::engine
