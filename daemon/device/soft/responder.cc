#include "daemon/device/soft/responder.h"

#include "daemon/device/soft/soft_qp.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::soft {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::WcOpcode;
using device::WcStatus;
using wire::NakCode;
using wire::Operation;
using wire::PacketView;
using wire::Psn;

Responder::Responder(QpContext& qp) : qp_(qp), queue_(qp.cap.max_recv_wr, qp.cap.max_recv_sge) {}

void Responder::Start() noexcept {
  expected_psn_ = Psn(qp_.attr.rq_psn);
  msn_ = {};
}

void Responder::Reset() noexcept {
  if (qp_.srq != nullptr) qp_.srq->RemoveWaiter(qp_.srq_waiter);
  queue_.Clear();
  expected_psn_ = {};
  msn_ = {};
  message_ = Message::kNone;
  established_ = failing_ = local_message_ = local_sender_waits_ = false;
  said_ = Said::kNothing;
  failure_ = Finding::kPass;
  has_current_ = false;
  received_bytes_ = 0;
  write_left_bytes_ = 0;
  response_head_ = response_count_ = 0;
  atomics_ = {};
  atomic_next_ = 0;
  has_response_end_ = false;
  ack_ = Ack::kNone;
}

void Responder::Flush() noexcept {
  ack_ = Ack::kNone;
  response_count_ = 0;
  failing_ = local_message_ = false;
  message_ = Message::kNone;
  while (has_current_ || !queue_.empty()) {
    if (!has_current_) queue_.Pop(&current_);
    has_current_ = false;
    device::Wc wc{};
    wc.wr_id = current_.wr_id;
    wc.status = WcStatus::kWrFlushErr;
    wc.opcode = WcOpcode::kRecv;
    wc.flags = shm::kCqeRecvQueue;
    qp_.Complete(*qp_.recv_cq, wc);
  }
}

PostResult Responder::Post(const device::RecvWr& wr) noexcept {
  if (qp_.state() == QpState::kReset) return PostResult::kWrongState;
  if (queue_.full()) return PostResult::kQueueFull;
  if (wr.sges.size() > qp_.cap.max_recv_sge) return PostResult::kTooManySges;
  queue_.Push(wr);
  if (qp_.state() == QpState::kErr) Flush();
  return PostResult::kOk;
}

void Responder::OnRequest(const PacketView& packet) noexcept {
  if (failing_) {
    Count(qp_.core.counters.drop_bad_state);
    return;
  }
  if (!CheckPsn(packet)) return;
  // The packet that was awaited: what was to be said about its absence is void.
  said_ = Said::kNothing;
  DropStaleNak();
  local_message_ = false;
  NoteEstablished();

  const Finding finding = RunChecks(packet);
  if (finding != Finding::kPass) {
    Refuse(finding, packet.psn);
    return;
  }
  if (packet.info().ends_message()) {
    ++msn_;
    ForgetOldResponseEnd();
  }
  if (packet.ack_req && packet.info().has_payload()) QueueAck(expected_psn_ - 1);
}

Finding Responder::RunChecks(const PacketView& packet) noexcept {
  static constexpr Check kChecks[] = {&Responder::CheckSequence,  &Responder::CheckOperation,
                                      &Responder::CheckResources, &Responder::CheckLength,
                                      &Responder::CheckKey,       &Responder::Execute};
  for (const Check check : kChecks) {
    const Finding finding = (this->*check)(packet);
    if (finding != Finding::kPass) return finding;
  }
  return Finding::kPass;
}

// True for the packet that comes next. Others are dealt with here.
bool Responder::CheckPsn(const PacketView& packet) noexcept {
  const int32_t distance = packet.psn - expected_psn_;
  if (distance == 0) return true;
  if (distance < 0) {
    Count(qp_.core.counters.duplicate_requests);
    OnDuplicate(packet);
    return false;
  }
  Count(qp_.core.counters.drop_out_of_sequence);
  const bool again = said_ == Said::kMissing && wire::IsBefore(packet.psn, last_behind_);
  last_behind_ = packet.psn;
  if (said_ == Said::kNothing || again) {
    said_ = Said::kMissing;
    QueueNak(wire::NakSyndrome(NakCode::kPsnSequenceError), expected_psn_, false);
  }
  return false;
}

// A request that was executed before. Nothing here touches the live sequence.
void Responder::OnDuplicate(const PacketView& packet) noexcept {
  switch (packet.info().operation) {
    case Operation::kSend:
    case Operation::kWrite:
      QueueAck(DuplicateAckPsn(packet.psn));
      return;
    case Operation::kReadRequest: {
      // Perhaps the rest of a READ whose response was lost on the way. The memory may have changed
      // hands since: the key decides again.
      const uint32_t length = packet.reth.dma_length_bytes;
      const uint32_t packets = ResponsePackets(length);
      const auto behind = static_cast<uint32_t>(expected_psn_ - packet.psn);
      if (length > kMaxMessageBytes || packets > behind || !MayDo(Operation::kReadRequest) ||
          CheckKey(packet) != Finding::kPass) {
        return;
      }
      CancelResponsesFrom(packet.psn);
      if (!HasRoomForResponse()) return;
      PushResponse({.psn = packet.psn,
                    .packets = packets,
                    .va = packet.reth.va,
                    .rkey = packet.reth.rkey.value(),
                    .length_bytes = length,
                    .msn = msn_,
                    .is_repeated = true});
      return;
    }
    case Operation::kAtomicRequest:
      for (uint32_t age = 1; age <= atomics_.size(); ++age) {
        const AtomicResult& result = atomics_[(atomic_next_ - age) % atomics_.size()];
        if (!result.valid || result.psn != packet.psn) continue;
        CancelResponsesFrom(packet.psn);
        if (!HasRoomForResponse()) return;
        PushResponse({.psn = packet.psn,
                      .packets = 1,
                      .atomic_value = result.value,
                      .msn = msn_,
                      .is_atomic = true,
                      .is_repeated = true});
        return;
      }
      return;
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      return;
  }
}

// Answers a request that a check did not let pass.
void Responder::Refuse(Finding finding, Psn psn) noexcept {
  TransportCounters& counters = qp_.core.counters;
  NakCode code = NakCode::kInvalidRequest;
  switch (finding) {
    case Finding::kPass:
      return;
    case Finding::kNotReady:
      Count(counters.tx_rnr_nak);
      said_ = Said::kNotReady;  // what follows is dropped in silence until this packet comes again
      QueueNak(wire::RnrNakSyndrome(qp_.attr.min_rnr_timer), psn, false);
      return;
    case Finding::kInvalidRequest:
    // IBTA and HCAs answer a receive that is too short with "invalid request"; the kernel's rxe
    // with "remote operational error". We side with the specification: the peer sent more than was
    // provided for.
    case Finding::kReceiveTooShort:
      Count(counters.tx_nak_invalid_request);
      break;
    case Finding::kRemoteAccess:
      code = NakCode::kRemoteAccessError;
      Count(counters.tx_nak_remote_access);
      break;
    case Finding::kReceiveBroken:
      code = NakCode::kRemoteOperationalError;
      Count(counters.tx_nak_remote_operation);
      break;
  }
  FailReceive(finding);
  failing_ = true;
  failure_ = finding;
  QueueNak(wire::NakSyndrome(code), psn, true);
}

Finding Responder::TakeReceive() noexcept {
  if (!has_current_) {
    if (qp_.srq != nullptr) {
      if (!qp_.srq->Take(&current_)) return Finding::kNotReady;
    } else {
      if (queue_.empty() && qp_.receive_source != nullptr) qp_.receive_source->PostReceives();
      if (queue_.empty()) return Finding::kNotReady;
      queue_.Pop(&current_);
    }
    has_current_ = true;
  }
  // Also if there was one: half a local message may have left it behind.
  receive_cursor_ = {};
  received_bytes_ = 0;
  return Finding::kPass;
}

void Responder::FailReceive(Finding finding) noexcept {
  if (!has_current_) return;
  has_current_ = false;
  device::Wc wc{};
  wc.wr_id = current_.wr_id;
  wc.opcode = WcOpcode::kRecv;
  wc.flags = shm::kCqeRecvQueue;
  switch (finding) {
    case Finding::kReceiveTooShort:
      wc.status = WcStatus::kLocLenErr;
      break;
    case Finding::kReceiveBroken:
      wc.status = WcStatus::kLocProtErr;
      break;
    case Finding::kRemoteAccess:
      wc.status = WcStatus::kRemAccessErr;
      break;
    case Finding::kPass:
    case Finding::kNotReady:
    case Finding::kInvalidRequest:
      wc.status = WcStatus::kRemInvReqErr;
      break;
  }
  qp_.Complete(*qp_.recv_cq, wc);
}

// What no completion of this side tells.
void Responder::RaiseFor(Finding finding) noexcept {
  if (finding == Finding::kInvalidRequest) qp_.Raise(AsyncEventType::kQpReqErr);
  if (finding == Finding::kRemoteAccess) qp_.Raise(AsyncEventType::kQpAccessErr);
}

void Responder::CompleteReceive(const ReceiveInfo& info) noexcept {
  has_current_ = false;
  device::Wc wc{};
  wc.wr_id = current_.wr_id;
  wc.status = WcStatus::kSuccess;
  wc.opcode = info.is_write ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv;
  wc.flags = static_cast<uint8_t>(shm::kCqeRecvQueue | (info.has_imm ? shm::kCqeWithImm : 0) |
                                  (info.has_inv ? shm::kCqeWithInv : 0));
  wc.solicited = info.solicited;
  wc.byte_len = info.byte_len;
  wc.imm_be = info.has_imm || info.has_inv ? info.imm_be : 0;
  wc.src_qpn = qp_.attr.dest_qpn;
  qp_.Complete(*qp_.recv_cq, wc);
}

// The peer's first request says what its RTU says. The application hears of it in RTR only, where it
// has a use for that; the CM always, since an RTU that gets lost must not keep the connection back.
void Responder::NoteEstablished() noexcept {
  if (established_) return;
  established_ = true;
  if (qp_.state() == QpState::kRtr) qp_.Raise(AsyncEventType::kCommEst);
  if (FirstDataSink* const sink = qp_.core.first_data) {
    sink->OnFirstData(qp_.flow, qp_.qpn, qp_.attr.dest_qpn);
  }
}

void Responder::BeginLocalMessage() noexcept {
  NoteEstablished();
  message_ = Message::kNone;  // UC: what came of another one over the network stays a fragment
  local_message_ = true;
}

void Responder::FinishLocalMessage(uint32_t packets, const ReceiveInfo& info) noexcept {
  local_message_ = false;
  expected_psn_ += packets;
  ++msn_;
  if (info.completes) CompleteReceive(info);
}

}  // namespace rdmad::soft
