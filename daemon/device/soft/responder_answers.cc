// The responder's answers: the queue of READ and atomic responses, and the ACK or NAK behind it.
#include "daemon/device/soft/responder.h"
#include "daemon/device/soft/soft_qp.h"

namespace rdmad::soft {

using wire::NakCode;
using wire::Opcode;
using wire::Psn;

void Responder::QueueAck(Psn psn) noexcept {
  if (ack_ == Ack::kNak || ack_ == Ack::kFatalNak) return;  // says as much, and more
  ack_ = Ack::kAck;
  ack_syndrome_ = wire::AckSyndrome();
  ack_psn_ = psn;
}

void Responder::QueueNak(uint8_t syndrome, Psn psn, bool fatal) noexcept {
  ack_ = fatal ? Ack::kFatalNak : Ack::kNak;
  ack_syndrome_ = syndrome;
  ack_psn_ = psn;
}

// Forgets a NAK that is not sent yet and no longer true.
void Responder::DropStaleNak() noexcept {
  if (ack_ == Ack::kNak) ack_ = Ack::kNone;
}

// At the end; the PSN lies behind those of all others. A response acknowledges what came before it.
void Responder::PushResponse(const Response& response) noexcept {
  if (ack_ == Ack::kAck) ack_ = Ack::kNone;
  responses_[(response_head_ + response_count_++) % responses_.size()] = response;
}

// The peer has gone back to `psn` and will ask again for everything from there on, in order. What
// was to be said about later packets would tell it that responses were lost.
void Responder::CancelResponsesFrom(Psn psn) noexcept {
  while (response_count_ > 0) {
    const Response& last = responses_[(response_head_ + response_count_ - 1) % responses_.size()];
    if (!wire::IsAfter(last.psn + last.packets, psn)) break;
    --response_count_;
  }
  if (ack_ != Ack::kFatalNak) ack_ = Ack::kNone;
}

// Whether one more keeps to the number that was agreed, asked for anew or again. A peer that keeps
// to it and asks for more has had the answer to the oldest of its requests, and what waits here to
// be sent is a copy: it makes room.
bool Responder::HasRoomForResponse() noexcept {
  if (response_count_ < qp_.attr.max_dest_rd_atomic) return true;
  if (response_count_ == 0 || !responses_[response_head_].is_repeated) return false;
  DropFirstResponse();
  return true;
}

void Responder::DropFirstResponse() noexcept {
  response_head_ = (response_head_ + 1) % responses_.size();
  --response_count_;
}

// Which PSN to acknowledge when `psn` comes again: all that was received, since the peer has missed
// that. But an ACK beyond a READ says that the READ's responses were sent; one that the peer may
// still miss must not be passed over.
Psn Responder::DuplicateAckPsn(Psn psn) const noexcept {
  const bool read_between = has_response_end_ && wire::IsAfter(response_end_, psn);
  return read_between ? psn : expected_psn_ - 1;
}

// Before PSNs have gone so far round that it would seem to lie ahead. A message has less than 2^22
// packets, so looking at the end of each is often enough.
void Responder::ForgetOldResponseEnd() noexcept {
  constexpr int32_t kOutOfReach = 1 << 21;
  if (has_response_end_ && expected_psn_ - response_end_ > kOutOfReach) has_response_end_ = false;
}

RunResult Responder::Run(uint32_t budget_bytes, TimeNs now) noexcept {
  RunResult result;
  while (response_count_ > 0) {
    if (result.spent_bytes >= budget_bytes) {
      result.more = true;
      return result;
    }
    if (!SendResponses(budget_bytes - result.spent_bytes, &result)) {
      result.more = true;
      return result;
    }
  }
  if (ack_ != Ack::kNone && !SendAck(&result)) {
    result.more = true;
    return result;
  }
  if (failing_ && ack_ == Ack::kNone) {
    RaiseFor(failure_);
    qp_.self.EnterError(now);
  }
  return result;
}

// One batch of responses. False if the network took less than all of it.
bool Responder::SendResponses(uint32_t budget_bytes, RunResult* result) noexcept {
  TxBatch& batch = qp_.core.batch;
  batch.Clear();
  const uint32_t whole = TxBatch::WholePackets(qp_.mtu_bytes);
  const auto full = [&] { return !batch.HasRoom() || batch.size() >= whole; };
  uint32_t spent = 0;
  bool revoked = false;
  Psn revoked_psn;
  for (uint32_t i = 0; i < response_count_ && !revoked; ++i) {
    const Response& response = responses_[(response_head_ + i) % responses_.size()];
    for (uint32_t n = response.sent; n < response.packets; ++n) {
      if (full() || spent >= budget_bytes) break;
      const uint64_t offset = uint64_t{n} * qp_.mtu_bytes;
      const auto bytes =
          static_cast<uint32_t>(std::min<uint64_t>(qp_.mtu_bytes, response.length_bytes - offset));
      const bool first = n == 0;
      const bool last = n + 1 == response.packets;
      wire::PacketFields& fields = batch.Add();
      fields.opcode = response.is_atomic ? Opcode::kRcAtomicAck
                      : first && last    ? Opcode::kRcReadResponseOnly
                      : first            ? Opcode::kRcReadResponseFirst
                      : last             ? Opcode::kRcReadResponseLast
                                         : Opcode::kRcReadResponseMiddle;
      fields.dest_qpn = wire::Qpn(qp_.attr.dest_qpn);
      fields.psn = response.psn + n;
      fields.aeth = {wire::AckSyndrome(), response.msn};
      fields.atomic_original = response.atomic_value;
      if (bytes > 0) {
        const device::Sge range{
            .addr = response.va + offset, .length_bytes = bytes, .lkey = response.rkey};
        SgeCursor cursor;
        const SgeList source{.sges = {&range, 1},
                             .pd_id = qp_.pd_id,
                             .access = device::kAccessRemoteRead,
                             .qp_scope = qp_.key_scope};
        if (!batch.AddPayload(source, cursor, qp_.core.mrs, bytes)) {
          revoked = true;
          revoked_psn = response.psn + n;
          break;
        }
      }
      spent += bytes + kPacketOverheadBytes;
    }
    if (full() || spent >= budget_bytes) break;
  }

  const size_t offered = batch.size();
  const size_t taken = offered == 0 ? 0 : qp_.core.tx->Send(qp_.flow, batch.packets());
  uint64_t payload_bytes = 0;
  for (const TxPacket& packet : batch.packets().first(taken)) {
    payload_bytes += packet.payload_bytes;
    Response& response = responses_[response_head_];
    if (++response.sent == response.packets) DropFirstResponse();
  }
  Count(qp_.core.counters.tx_packets, taken);
  Count(qp_.core.counters.tx_payload_bytes, payload_bytes);
  result->spent_bytes += static_cast<uint32_t>(payload_bytes + taken * kPacketOverheadBytes);
  result->work += static_cast<int>(taken);
  if (taken < offered) {
    Count(qp_.core.counters.tx_blocked);
    return false;
  }
  if (!revoked) return true;
  // All before it has gone: it is at the head.
  if (responses_[response_head_].is_repeated) {
    // Its first answer was complete, and since then the memory may be taken away. A peer that has
    // missed that answer does not get it, as when it asks later: see OnDuplicate().
    DropFirstResponse();
  } else {
    response_count_ = 0;
    Refuse(Finding::kRemoteAccess, revoked_psn);
  }
  return true;
}

bool Responder::SendAck(RunResult* result) noexcept {
  TxBatch& batch = qp_.core.batch;
  batch.Clear();
  wire::PacketFields& fields = batch.Add();
  fields.opcode = Opcode::kRcAck;
  fields.dest_qpn = wire::Qpn(qp_.attr.dest_qpn);
  fields.psn = ack_psn_;
  fields.aeth = {ack_syndrome_, msn_};
  if (qp_.core.tx->Send(qp_.flow, batch.packets()) == 0) {
    Count(qp_.core.counters.tx_blocked);
    return false;
  }
  TransportCounters& counters = qp_.core.counters;
  Count(counters.tx_packets);
  if (ack_ == Ack::kAck) Count(counters.tx_acks);
  if (ack_ == Ack::kNak && wire::AckKindOf(ack_syndrome_) == wire::AckKind::kNak) {
    Count(counters.tx_nak_sequence);
  }
  ack_ = Ack::kNone;
  result->spent_bytes += kPacketOverheadBytes;
  ++result->work;
  return true;
}

}  // namespace rdmad::soft
