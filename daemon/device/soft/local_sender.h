// The local path: executes the WR at the head of a send queue on a QP of the same transport,
// without a packet.
//
// Bytes are copied once, from the sender's memory to the receiver's, in slices as the turn's budget
// allows. The checks are those that requester and responder make of packets, in their order, with
// the same statuses, events and RNR waits at both ends. PSNs advance as if packets had been sent,
// so either side may go over to the network at any message. A peer that is missing, in no state to
// receive, or connected to somebody else is no peer: the requester then uses the network, where
// nobody answers, and gives up after the same timeouts and retries as for a remote QP. On UC a
// refusal is the receiver's alone: the sender's WR succeeds.
//
// Thread: engine. Owner: the requester.
#pragma once

#include <cstdint>

#include "daemon/device/soft/qp_context.h"
#include "daemon/device/soft/responder.h"
#include "daemon/device/soft/run_result.h"
#include "daemon/device/soft/send_queue.h"

namespace rdmad::soft {

class Requester;

class LocalSender {
 public:
  LocalSender(QpContext& qp, Requester& requester) : qp_(qp), requester_(requester) {}

  // Messages may go to the peer without packets, as of now. Cheap: asked for each message.
  bool HasPeer() const noexcept { return FindReady() != nullptr; }
  // The QP to which this one is connected lives on this transport, in whatever state.
  SoftQp* FindPeer() const noexcept;

  // Executes WRs from the head of the queue until budget or queue is at its end. False if there is
  // nothing more to do in this turn: it waits for a receive, or the QP has failed.
  bool Run(uint32_t budget_bytes, TimeNs now, RunResult* result) noexcept;
  // The message at the head has begun: it is half copied, or has found no receive.
  bool in_progress() const noexcept { return active_ || waits_; }
  void Reset() noexcept { active_ = waits_ = false; }
  void ForgetPeer() noexcept { address_generation_ = 0; }

 private:
  // What follows from an attempt to begin or to copy.
  enum class Step : uint8_t {
    kGoOn,
    kNext,  // the message is out of the way
    kStop,
  };

  SoftQp* FindReady() const noexcept;
  Step Begin(const SendWqe& wqe, SoftQp& peer, TimeNs now) noexcept;
  Step CopySlice(const SendWqe& wqe, SoftQp& peer, uint32_t bytes, TimeNs now) noexcept;
  SgeList LocalList(const SendWqe& wqe) const noexcept;
  bool FailsHere(const SendWqe& wqe, TimeNs now) noexcept;
  Step Refused(Finding finding, SoftQp& peer, TimeNs now) noexcept;

  QpContext& qp_;
  Requester& requester_;
  bool active_ = false;
  bool waits_ = false;       // for a receive
  uint32_t offset_ = 0;      // bytes of the message that are copied
  SgeCursor local_cursor_;   // in the WR's SGEs
  SgeCursor remote_cursor_;  // in the receive's SGEs, or the remote range
  mutable uint32_t address_generation_ =
      0;  // of the transport's local addresses when last looked at
  mutable bool address_is_local_ = false;
};

}  // namespace rdmad::soft
