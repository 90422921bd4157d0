// The responder of a UC QP: the pipeline without answers.
//
// PSNs only tell whether a message is whole. Any packet that begins one is taken, whatever its PSN;
// the others must follow the one before. Source: IBTA vol. 1, Transport Layer, "Unreliable
// Connected": errors of the peer drop the message, errors of this side end the QP.
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

void Responder::DropMessage(Finding finding) noexcept {
  message_ = Message::kNone;
  local_message_ = false;
  Count(qp_.core.counters.drop_refused);
  if (finding != Finding::kReceiveBroken) return;
  FailReceive(finding);
  failing_ = true;
  failure_ = finding;
}

}  // namespace rdmad::soft
