// A QP at an engine: takes WRs from its rings and posts them to the device's QP.
//
// What the client can do wrong, and what becomes of it (a correct library does none of it: it
// refuses the post with an errno):
//   a send that is malformed, or that the device refuses   it completes with an error once those
//       before it are done, and so the QP goes to the error state, which flushes those behind it;
//   such a receive   the QP goes to the error state at once, and it is flushed;
//   more WRs than the queue's depth, or a corrupt ring   the QP goes to the error state with an
//   async
//       event, and its rings are not read again before the QP was in RESET.
//
// Receives are taken before sends, so that a client that posts both for itself meets no RNR.
#pragma once

#include <cstdint>

#include "daemon/engine/cq_port.h"
#include "daemon/engine/engine_context.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_port.h"
#include "daemon/engine/work_queue_reader.h"

namespace rdmad::engine {

class ShmQueuePairPort final : public QueuePairPort,
                               public WorkSource,
                               private device::ReceiveSource,
                               public TableHook<ShmQueuePairPort, QpTag> {
 public:
  ShmQueuePairPort(EngineContext& context, const QueuePairPortInit& init);

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  DrainResult Drain(uint32_t budget, device::TimeNs now) noexcept override;

  // The QP has entered RESET: what the rings hold is forgotten.
  void OnReset() noexcept;
  void MoveToError(device::TimeNs now) noexcept;

 private:
  void PostReceives() noexcept override;
  DrainResult DrainSends(uint32_t budget, device::TimeNs now) noexcept;
  DrainResult DrainRecvs(uint32_t budget, device::TimeNs now) noexcept;
  // False if the port is broken now.
  bool PostSend(const device::SendWr& wr, device::TimeNs now) noexcept;
  bool PostRecv(const device::RecvWr& wr, device::TimeNs now) noexcept;
  bool FailSend(uint64_t wr_id, device::WcStatus status, device::TimeNs now) noexcept;
  bool FailRecv(uint64_t wr_id, device::TimeNs now) noexcept;
  void Break(device::TimeNs now) noexcept;

  EngineContext& context_;
  ShmSessionPort& session_;
  device::Qp& qp_;
  const device::Pd* const pd_;
  ShmCqPort& send_cq_;
  ShmCqPort& recv_cq_;
  const uint32_t doorbell_index_;
  WorkQueueReader sends_;
  WorkQueueReader recvs_;
  bool broken_ = false;
  CqUser send_cq_user_;
  CqUser recv_cq_user_;
  EventSource events_;
};

}  // namespace rdmad::engine
