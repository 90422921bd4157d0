#include "daemon/device/soft/responder.h"

#include <arpa/inet.h>

#include <cstring>

#include "daemon/device/soft/remote_atomic.h"
#include "daemon/device/soft/soft_qp.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::soft {

using device::AsyncEventType;
using device::PostResult;
using device::QpState;
using device::WcOpcode;
using device::WcStatus;
using wire::NakCode;
using wire::Opcode;
using wire::Operation;
using wire::PacketView;
using wire::Psn;

namespace {

bool TakesReceive(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  if (info.operation == Operation::kSend) return info.starts_message();
  return info.operation == Operation::kWrite && info.has(wire::kHasImmDt);
}

}  // namespace

Responder::Responder(QpContext& qp) : qp_(qp), queue_(qp.cap.max_recv_wr, qp.cap.max_recv_sge) {}

void Responder::Start() noexcept {
  expected_psn_ = Psn(qp_.attr.rq_psn);
  msn_ = {};
}

void Responder::Reset() noexcept {
  queue_.Clear();
  expected_psn_ = {};
  msn_ = {};
  message_ = Message::kNone;
  established_ = nak_sent_ = failing_ = local_message_ = local_sender_waits_ = false;
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
  nak_sent_ = false;
  DropStaleNak();
  local_message_ = false;
  NoteEstablished();

  static constexpr Check kChecks[] = {&Responder::CheckSequence,  &Responder::CheckOperation,
                                      &Responder::CheckResources, &Responder::CheckLength,
                                      &Responder::CheckKey,       &Responder::Execute};
  for (const Check check : kChecks) {
    const Finding finding = (this->*check)(packet);
    if (finding != Finding::kPass) {
      Refuse(finding, packet.psn);
      return;
    }
  }
  if (packet.info().ends_message()) ++msn_;
  if (packet.ack_req && packet.info().has_payload()) QueueAck(expected_psn_ - 1);
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
  if (!nak_sent_) {
    nak_sent_ = true;
    QueueNak(wire::NakSyndrome(NakCode::kPsnSequenceError), expected_psn_, false);
  }
  return false;
}

// Whether the opcode may follow the one before.
Finding Responder::CheckSequence(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const bool starts = info.starts_message();
  if (starts != (message_ == Message::kNone)) return Finding::kInvalidRequest;
  if (starts) return Finding::kPass;
  const Message belongs_to = info.operation == Operation::kSend ? Message::kSend : Message::kWrite;
  return belongs_to == message_ ? Finding::kPass : Finding::kInvalidRequest;
}

bool Responder::MayDo(Operation operation) const noexcept {
  switch (operation) {
    case Operation::kSend:
      return true;
    case Operation::kWrite:
      return (qp_.attr.access_flags & device::kAccessRemoteWrite) != 0;
    case Operation::kReadRequest:
      return (qp_.attr.access_flags & device::kAccessRemoteRead) != 0 &&
             qp_.attr.max_dest_rd_atomic > 0;
    case Operation::kAtomicRequest:
      return (qp_.attr.access_flags & device::kAccessRemoteAtomic) != 0 &&
             qp_.attr.max_dest_rd_atomic > 0;
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      break;
  }
  return false;
}

// Whether this QP serves such requests at all. There are no memory windows yet, hence nothing that
// a SEND with invalidate could name.
Finding Responder::CheckOperation(const PacketView& packet) noexcept {
  if (packet.info().has(wire::kHasIeth)) return Finding::kInvalidRequest;
  return MayDo(packet.info().operation) ? Finding::kPass : Finding::kInvalidRequest;
}

Finding Responder::TakeReceive() noexcept {
  if (!has_current_) {
    if (queue_.empty()) return Finding::kNotReady;
    queue_.Pop(&current_);
    has_current_ = true;
  }
  // Also if there was one: half a local message may have left it behind.
  receive_cursor_ = {};
  received_bytes_ = 0;
  return Finding::kPass;
}

// A receive for what will complete one; room in the queue for what wants a response.
Finding Responder::CheckResources(const PacketView& packet) noexcept {
  if (TakesReceive(packet)) return TakeReceive();
  const Operation operation = packet.info().operation;
  if ((operation == Operation::kReadRequest || operation == Operation::kAtomicRequest) &&
      response_count_ >= qp_.attr.max_dest_rd_atomic) {
    return Finding::kInvalidRequest;  // the peer has more in flight than was agreed
  }
  return Finding::kPass;
}

Finding Responder::CheckLength(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const size_t bytes = packet.payload.size();
  if (info.has_payload()) {
    // First and middle packets are full, the last one of several is not empty.
    const bool ends = info.ends_message();
    if (ends ? bytes > qp_.mtu_bytes : bytes != qp_.mtu_bytes) return Finding::kInvalidRequest;
    if (info.position == wire::Position::kLast && bytes == 0) return Finding::kInvalidRequest;
  }
  switch (info.operation) {
    case Operation::kSend:
      if (received_bytes_ + bytes > kMaxMessageBytes) return Finding::kInvalidRequest;
      if (received_bytes_ + bytes > current_.capacity_bytes) return Finding::kReceiveTooShort;
      return Finding::kPass;
    case Operation::kWrite: {
      if (info.starts_message()) {
        if (packet.reth.dma_length_bytes > kMaxMessageBytes) return Finding::kInvalidRequest;
        write_va_ = packet.reth.va;
        write_rkey_ = packet.reth.rkey.value();
        write_length_bytes_ = write_left_bytes_ = packet.reth.dma_length_bytes;
      }
      const bool fits =
          info.ends_message() ? bytes == write_left_bytes_ : bytes < write_left_bytes_;
      return fits ? Finding::kPass : Finding::kInvalidRequest;
    }
    case Operation::kReadRequest:
      return packet.reth.dma_length_bytes > kMaxMessageBytes ? Finding::kInvalidRequest
                                                             : Finding::kPass;
    case Operation::kAtomicRequest:
      return packet.atomic.va % sizeof(uint64_t) != 0 ? Finding::kInvalidRequest : Finding::kPass;
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      break;
  }
  return Finding::kInvalidRequest;
}

// The whole range at the start of a message, so that a bad one changes nothing. Zero-length
// operations name no memory (IBTA vol. 1, "R_Key" checks do not apply to them).
Finding Responder::CheckKey(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const auto holds = [this](uint64_t va, wire::Rkey rkey, uint32_t bytes, uint32_t access) {
    return bytes == 0 ||
           qp_.core.mrs.Translate(rkey.value(), qp_.pd_id, va, bytes, access) != nullptr;
  };
  bool good = true;
  if (info.operation == Operation::kWrite && info.starts_message()) {
    good = holds(packet.reth.va, packet.reth.rkey, packet.reth.dma_length_bytes,
                 device::kAccessRemoteWrite);
  } else if (info.operation == Operation::kReadRequest) {
    good = holds(packet.reth.va, packet.reth.rkey, packet.reth.dma_length_bytes,
                 device::kAccessRemoteRead);
  } else if (info.operation == Operation::kAtomicRequest) {
    good =
        holds(packet.atomic.va, packet.atomic.rkey, sizeof(uint64_t), device::kAccessRemoteAtomic);
  }
  return good ? Finding::kPass : Finding::kRemoteAccess;
}

Finding Responder::Execute(const PacketView& packet) noexcept {
  switch (packet.info().operation) {
    case Operation::kSend:
      return ExecuteSend(packet);
    case Operation::kWrite:
      return ExecuteWrite(packet);
    case Operation::kReadRequest:
      ExecuteRead(packet);
      return Finding::kPass;
    case Operation::kAtomicRequest:
      return ExecuteAtomic(packet);
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      break;
  }
  return Finding::kInvalidRequest;
}

Finding Responder::ExecuteSend(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const SgeList target = ReceiveList();
  const auto* from = reinterpret_cast<const std::byte*>(packet.payload.data());
  for (size_t left = packet.payload.size(); left > 0;) {
    const std::span<std::byte> to = receive_cursor_.Next(target, qp_.core.mrs, left);
    if (to.empty()) return Finding::kReceiveBroken;
    std::memcpy(to.data(), from, to.size());
    from += to.size();
    left -= to.size();
  }
  received_bytes_ += packet.payload.size();
  ++expected_psn_;
  message_ = info.ends_message() ? Message::kNone : Message::kSend;
  if (info.ends_message()) {
    CompleteReceive({.completes = true,
                     .is_write = false,
                     .has_imm = info.has(wire::kHasImmDt),
                     .solicited = packet.solicited,
                     .imm_be = htonl(packet.imm),
                     .byte_len = static_cast<uint32_t>(received_bytes_)});
  }
  return Finding::kPass;
}

Finding Responder::ExecuteWrite(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const auto bytes = static_cast<uint32_t>(packet.payload.size());
  if (bytes > 0) {
    // Again for each packet: the region may have been revoked since the first.
    std::byte* const to = qp_.core.mrs.Translate(write_rkey_, qp_.pd_id, write_va_, bytes,
                                                 device::kAccessRemoteWrite);
    if (to == nullptr) return Finding::kRemoteAccess;
    const auto* from = reinterpret_cast<const std::byte*>(packet.payload.data());
    if (info.ends_message()) {
      CopyLastByteLast(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
    write_va_ += bytes;
    write_left_bytes_ -= bytes;
  }
  ++expected_psn_;
  message_ = info.ends_message() ? Message::kNone : Message::kWrite;
  if (info.has(wire::kHasImmDt)) {
    CompleteReceive({.completes = true,
                     .is_write = true,
                     .has_imm = true,
                     .solicited = packet.solicited,
                     .imm_be = htonl(packet.imm),
                     .byte_len = write_length_bytes_});
  }
  return Finding::kPass;
}

void Responder::ExecuteRead(const PacketView& packet) noexcept {
  const uint32_t length = packet.reth.dma_length_bytes;
  const uint32_t packets = ResponsePackets(length);
  PushResponse({.psn = packet.psn,
                .packets = packets,
                .va = packet.reth.va,
                .rkey = packet.reth.rkey.value(),
                .length_bytes = length,
                .msn = msn_ + 1});
  expected_psn_ += packets;
  has_response_end_ = true;
  response_end_ = expected_psn_;
}

Finding Responder::ExecuteAtomic(const PacketView& packet) noexcept {
  std::byte* const target =
      qp_.core.mrs.Translate(packet.atomic.rkey.value(), qp_.pd_id, packet.atomic.va,
                             sizeof(uint64_t), device::kAccessRemoteAtomic);
  if (target == nullptr) return Finding::kRemoteAccess;
  if (!IsAtomicTarget(target)) return Finding::kInvalidRequest;
  const uint64_t original =
      packet.opcode == Opcode::kRcCompareSwap
          ? CompareSwap(target, packet.atomic.compare, packet.atomic.swap_or_add)
          : FetchAdd(target, packet.atomic.swap_or_add);
  atomics_[atomic_next_++ % atomics_.size()] = {packet.psn, original, true};
  PushResponse({.psn = packet.psn,
                .packets = 1,
                .atomic_value = original,
                .msn = msn_ + 1,
                .is_atomic = true});
  ++expected_psn_;
  has_response_end_ = true;
  response_end_ = expected_psn_;
  return Finding::kPass;
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
      PushResponse({.psn = packet.psn,
                    .packets = packets,
                    .va = packet.reth.va,
                    .rkey = packet.reth.rkey.value(),
                    .length_bytes = length,
                    .msn = msn_});
      return;
    }
    case Operation::kAtomicRequest:
      for (uint32_t age = 1; age <= atomics_.size(); ++age) {
        const AtomicResult& result = atomics_[(atomic_next_ - age) % atomics_.size()];
        if (!result.valid || result.psn != packet.psn) continue;
        CancelResponsesFrom(packet.psn);
        PushResponse({.psn = packet.psn,
                      .packets = 1,
                      .atomic_value = result.value,
                      .msn = msn_,
                      .is_atomic = true});
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
      nak_sent_ = true;  // what follows is dropped in silence until this packet comes again
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
  wc.flags = static_cast<uint8_t>(shm::kCqeRecvQueue | (info.has_imm ? shm::kCqeWithImm : 0));
  wc.solicited = info.solicited;
  wc.byte_len = info.byte_len;
  wc.imm_be = info.has_imm ? info.imm_be : 0;
  wc.src_qpn = qp_.attr.dest_qpn;
  qp_.Complete(*qp_.recv_cq, wc);
}

void Responder::NoteEstablished() noexcept {
  if (established_ || qp_.state() != QpState::kRtr) return;
  established_ = true;
  qp_.Raise(AsyncEventType::kCommEst);
}

void Responder::BeginLocalMessage() noexcept {
  NoteEstablished();
  local_message_ = true;
}

void Responder::FinishLocalMessage(uint32_t packets, const ReceiveInfo& info) noexcept {
  local_message_ = false;
  expected_psn_ += packets;
  ++msn_;
  if (info.completes) CompleteReceive(info);
}

}  // namespace rdmad::soft
