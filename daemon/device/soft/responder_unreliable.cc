// The responder of a UC QP: the pipeline without answers.
//
// PSNs only tell whether a message is whole. Any packet that begins one is taken, whatever its PSN;
// the others must follow the one before. Source: IBTA vol. 1, Transport Layer, "Unreliable
// Connected": errors of the peer drop the message, errors of this side end the QP. A message that
// is longer than its receive is the peer's error, and the receive stays where it is; but one of an
// SRQ cannot be put back, so it completes with kLocLenErr and the QP is in error (see ud_qp.h).
#include "daemon/device/soft/responder.h"

namespace rdmad::soft {

using wire::PacketView;

bool Responder::OnUnreliableRequest(const PacketView& packet) noexcept {
  if (failing_) {
    Count(qp_.core.counters.drop_bad_state);
    return false;
  }
  if (packet.info().starts_message()) {
    // Whatever came before without its end stays a fragment.
    if (message_ != Message::kNone || local_message_) Count(qp_.core.counters.drop_incomplete);
    message_ = Message::kNone;
    local_message_ = false;
    expected_psn_ = packet.psn;
  } else if (message_ == Message::kNone || packet.psn != expected_psn_) {
    if (message_ != Message::kNone) Count(qp_.core.counters.drop_incomplete);
    message_ = Message::kNone;
    Count(qp_.core.counters.drop_out_of_sequence);
    return false;
  }
  NoteEstablished();
  const Finding finding = RunChecks(packet);
  if (finding != Finding::kPass) DropMessage(finding);
  return failing_;
}

bool Responder::DropMessage(Finding finding) noexcept {
  message_ = Message::kNone;
  local_message_ = false;
  Count(qp_.core.counters.drop_refused);
  const bool ends_qp = finding == Finding::kReceiveBroken ||
                       (finding == Finding::kReceiveTooShort && qp_.srq != nullptr);
  if (!ends_qp) return false;
  FailReceive(finding);
  failing_ = true;
  failure_ = finding;
  return true;
}

}  // namespace rdmad::soft
