// How the requester's packets are made: one at a time from a position in the send queue.
#include <arpa/inet.h>

#include "daemon/device/soft/requester.h"

namespace rdmad::soft {

using device::QpState;
using device::WcStatus;
using device::WrOpcode;
using wire::Opcode;
using wire::Psn;

namespace {

// The opcode of one packet of a SEND or WRITE on RC.
Opcode DataOpcode(const SendWqe& wqe, bool first, bool last) noexcept {
  const bool imm = wqe.has_imm();
  if (wqe.is_send()) {
    if (first && !last) return Opcode::kRcSendFirst;
    if (!last) return Opcode::kRcSendMiddle;
    if (wqe.opcode == WrOpcode::kSendWithInv) {
      return first ? Opcode::kRcSendOnlyInv : Opcode::kRcSendLastInv;
    }
    if (first) return imm ? Opcode::kRcSendOnlyImm : Opcode::kRcSendOnly;
    return imm ? Opcode::kRcSendLastImm : Opcode::kRcSendLast;
  }
  if (first && last) return imm ? Opcode::kRcWriteOnlyImm : Opcode::kRcWriteOnly;
  if (first) return Opcode::kRcWriteFirst;
  if (!last) return Opcode::kRcWriteMiddle;
  return imm ? Opcode::kRcWriteLastImm : Opcode::kRcWriteLast;
}

// UC numbers the same operations in the same way.
constexpr uint8_t kUcBits = static_cast<uint8_t>(Opcode::kUcSendFirst);
constexpr Opcode OnUc(Opcode rc) noexcept {
  return static_cast<Opcode>(static_cast<uint8_t>(rc) | kUcBits);
}
static_assert(OnUc(Opcode::kRcSendOnlyImm) == Opcode::kUcSendOnlyImm);
static_assert(OnUc(Opcode::kRcWriteOnlyImm) == Opcode::kUcWriteOnlyImm);

}  // namespace

Requester::Built Requester::BuildPacket(Position& at, WcStatus* error) noexcept {
  if (at.index == queue_.tail()) return Built::kNothing;
  const SendWqe& wqe = queue_[at.index];
  if (at.packet == 0) {
    if (wqe.is_local()) return Built::kNothing;  // Run() sees to it when all before it is done
    if (!wire::IsBefore(at.psn, max_psn_)) {
      // Nothing new starts while draining, nor on the network once there is a local path: that
      // waits for the answers to what went before.
      if (qp_.state() == QpState::kSqd) return Built::kNothing;
      if (at.psn != una_ && local_.FindPeer() != nullptr) return Built::kNothing;
    }
    if (wqe.verdict != WcStatus::kSuccess) {
      *error = wqe.verdict;
      return Built::kError;
    }
    if ((wqe.flags & shm::kWorkFence) != 0 && at.read_tail != read_head_) return Built::kNothing;
  }
  if (wqe.is_read()) return BuildRead(at, wqe, error);
  if (wqe.is_atomic()) return BuildAtomic(at, wqe, error);
  return BuildData(at, wqe, error);
}

void Requester::AdvancePosition(Position& at, const SendWqe& wqe, uint32_t packets) noexcept {
  at.packet += packets;
  at.psn += packets;
  if (at.packet == wqe.packet_count) {
    ++at.index;
    at.packet = 0;
    at.cursor = {};
  }
}

Requester::Built Requester::BuildData(Position& at, const SendWqe& wqe, WcStatus* error) noexcept {
  const uint64_t cost = CostOf(wqe, at.packet, at.packet + 1);
  const uint64_t in_flight = at.cost - acked_cost_;
  // A full window opens by an answer; the window may have shrunk since the last packet that asked
  // for one was answered.
  const bool answer_is_due = at.last_ack_cost > acked_cost_;
  if (in_flight + cost > window_.limit() && in_flight > 0 && (answer_is_due || !qp_.reliable())) {
    return Built::kNothing;
  }

  const bool first = at.packet == 0;
  const bool last = at.packet + 1 == wqe.packet_count;
  const auto bytes = static_cast<uint32_t>(cost - kPacketOverheadBytes);
  TxBatch& batch = qp_.core.batch;
  wire::PacketFields& fields = batch.Add();
  fields.opcode = DataOpcode(wqe, first, last);
  if (!qp_.reliable()) fields.opcode = OnUc(fields.opcode);
  fields.solicited = last && (wqe.flags & shm::kWorkSolicited) != 0;
  fields.dest_qpn = wire::Qpn(qp_.attr.dest_qpn);
  fields.psn = at.psn;
  if (first && wqe.is_write()) {
    fields.reth = {wqe.remote_addr, wire::Rkey(wqe.rkey), wqe.length_bytes};
  }
  if (last) {
    if (wqe.has_imm()) fields.imm = ntohl(wqe.imm_be);
    if (wqe.opcode == WrOpcode::kSendWithInv) fields.invalidate_rkey = wire::Rkey(wqe.imm_be);
  }
  // Wanted at the end of a message, four times per window, and when the window has no room for
  // another packet.
  const uint64_t after = at.cost + cost;
  fields.ack_req = qp_.reliable() && (last || after - at.last_ack_cost >= window_.limit() / 4 ||
                                      in_flight + cost + window_.packet_cost() > window_.limit());
  const bool ack_req = fields.ack_req;
  if (bytes > 0 && !batch.AddPayload(LocalList(at.index, 0), at.cursor, qp_.core.mrs, bytes)) {
    *error = WcStatus::kLocProtErr;
    return Built::kError;
  }
  at.cost = after;
  if (ack_req) at.last_ack_cost = after;
  AdvancePosition(at, wqe, 1);
  return Built::kPacket;
}

Requester::Built Requester::BuildRead(Position& at, const SendWqe& wqe, WcStatus* error) noexcept {
  if (qp_.attr.max_rd_atomic == 0) {  // taken back while it was queued
    *error = WcStatus::kLocQpOpErr;
    return Built::kError;
  }
  if (at.read_tail - read_head_ >= qp_.attr.max_rd_atomic) return Built::kNothing;
  if (at.packet == 0 &&
      !IsAccessible(LocalList(at.index, device::kAccessLocalWrite), qp_.core.mrs)) {
    *error = WcStatus::kLocProtErr;
    return Built::kError;
  }
  // As much as the window has room for, but no crumbs: rather wait until a quarter of the window is
  // free. What is asked for again is asked for to the end of its first request, at once: see
  // read_bounds_.
  const uint64_t in_flight = at.cost - acked_cost_;
  const uint64_t room = window_.limit() > in_flight ? window_.limit() - in_flight : 0;
  const bool again = wire::IsBefore(at.psn, max_psn_);
  const uint32_t remaining =
      std::min(wqe.packet_count - at.packet, again ? PacketsToBound(at) : UINT32_MAX);
  const uint64_t affordable = room / window_.packet_cost();
  if (in_flight > 0 && affordable < remaining && (again || room < window_.limit() / 4)) {
    return Built::kNothing;
  }
  const uint32_t packets =
      again ? remaining : static_cast<uint32_t>(std::clamp<uint64_t>(affordable, 1, remaining));

  const uint64_t cost = CostOf(wqe, at.packet, at.packet + packets);
  wire::PacketFields& fields = qp_.core.batch.Add();
  fields.opcode = Opcode::kRcReadRequest;
  fields.ack_req = true;
  fields.dest_qpn = wire::Qpn(qp_.attr.dest_qpn);
  fields.psn = at.psn;
  fields.reth = {wqe.remote_addr + uint64_t{at.packet} * qp_.mtu_bytes, wire::Rkey(wqe.rkey),
                 static_cast<uint32_t>(cost - uint64_t{kPacketOverheadBytes} * packets)};
  read_ends_[at.read_tail++ % kMaxRdAtomic] = at.psn + packets;
  if (!again) read_bounds_[at.bound_tail++ % kMaxRdAtomic] = at.psn + packets;
  at.cost += cost;
  at.last_ack_cost = at.cost;
  AdvancePosition(at, wqe, packets);
  return Built::kPacket;
}

// How many packets lie between `at`, inside a READ that is issued again, and the end of the request
// that asked for them first.
uint32_t Requester::PacketsToBound(const Position& at) const noexcept {
  for (uint32_t i = bound_head_; i != at.bound_tail; ++i) {
    const Psn bound = read_bounds_[i % kMaxRdAtomic];
    if (wire::IsAfter(bound, at.psn)) return static_cast<uint32_t>(bound - at.psn);
  }
  return static_cast<uint32_t>(max_psn_ - at.psn);
}

Requester::Built Requester::BuildAtomic(Position& at, const SendWqe& wqe,
                                        WcStatus* error) noexcept {
  if (qp_.attr.max_rd_atomic == 0) {  // taken back while it was queued
    *error = WcStatus::kLocQpOpErr;
    return Built::kError;
  }
  if (at.read_tail - read_head_ >= qp_.attr.max_rd_atomic) return Built::kNothing;
  if (!IsAccessible(LocalList(at.index, device::kAccessLocalWrite), qp_.core.mrs)) {
    *error = WcStatus::kLocProtErr;
    return Built::kError;
  }
  wire::PacketFields& fields = qp_.core.batch.Add();
  const bool swap = wqe.opcode == WrOpcode::kCompareSwap;
  fields.opcode = swap ? Opcode::kRcCompareSwap : Opcode::kRcFetchAdd;
  fields.ack_req = true;
  fields.dest_qpn = wire::Qpn(qp_.attr.dest_qpn);
  fields.psn = at.psn;
  fields.atomic = {wqe.remote_addr, wire::Rkey(wqe.rkey), swap ? wqe.swap : wqe.compare_add,
                   swap ? wqe.compare_add : 0};
  read_ends_[at.read_tail++ % kMaxRdAtomic] = at.psn + 1;
  at.cost += CostOf(wqe, 0, 1);
  at.last_ack_cost = at.cost;
  AdvancePosition(at, wqe, 1);
  return Built::kPacket;
}

}  // namespace rdmad::soft
