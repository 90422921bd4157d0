// The sending half of a datagram QP.
#include <arpa/inet.h>

#include <typeinfo>

#include "daemon/device/soft/send_window.h"
#include "daemon/device/soft/soft_ah.h"
#include "daemon/device/soft/ud_qp.h"

namespace rdmad::soft {

using device::PostResult;
using device::QpState;
using device::WcStatus;
using device::WrOpcode;

namespace {

// A QKey with this bit, in a WR, stands for the QP's own. Source: IBTA vol. 1, "Q_Key".
constexpr uint32_t kOwnQkey = 1u << 31;

wire::Opcode OpcodeOf(const SendWqe& wqe) noexcept {
  return wqe.has_imm() ? wire::Opcode::kUdSendOnlyImm : wire::Opcode::kUdSendOnly;
}

}  // namespace

PostResult UdQp::PostSend(const device::SendWr& wr, TimeNs) noexcept {
  const QpState state = attr_.state;
  const bool in_error = state == QpState::kErr || state == QpState::kSqe;
  if (!in_error && state != QpState::kRts && state != QpState::kSqd) return PostResult::kWrongState;
  if (queue_.full()) return PostResult::kQueueFull;
  if (wr.verdict != WcStatus::kSuccess) {
    Enqueue(wr, wr.flags, 0, wr.verdict);
    return PostResult::kOk;
  }
  if (wr.opcode != WrOpcode::kSend && wr.opcode != WrOpcode::kSendWithImm) {
    return PostResult::kBadOpcode;
  }
  uint8_t flags = wr.flags;
  if (init_.signal_all) flags |= shm::kWorkSignaled;
  uint64_t length_bytes = 0;
  if ((flags & shm::kWorkInline) != 0) {
    for (const auto piece : wr.inline_data.pieces) length_bytes += piece.size();
    if (length_bytes > cap_.max_inline_bytes) return PostResult::kTooLong;
  } else {
    if (wr.sges.size() > cap_.max_send_sge) return PostResult::kTooManySges;
    length_bytes = TotalBytes(wr.sges);
  }

  const WcStatus verdict = Judge(wr, length_bytes);
  if (verdict == WcStatus::kSuccess) {
    const bool own_qkey = (wr.remote_qkey & kOwnQkey) != 0;
    TargetOf(queue_.tail()) = {static_cast<const SoftAh*>(wr.ah)->flow(), wr.remote_qpn,
                               own_qkey ? attr_.qkey : wr.remote_qkey};
  } else {
    length_bytes = 0;
  }
  Enqueue(wr, flags, static_cast<uint32_t>(length_bytes), verdict);
  return PostResult::kOk;
}

void UdQp::Enqueue(const device::SendWr& wr, uint8_t flags, uint32_t length_bytes,
                   WcStatus verdict) noexcept {
  queue_.Push(wr, flags, length_bytes, 1, verdict);
  if (attr_.state == QpState::kErr || attr_.state == QpState::kSqe) {
    CompleteHead(WcStatus::kWrFlushErr);
  } else {
    core_.active.Push(active_);
  }
}

// What is wrong with a WR, to be reported in its turn.
WcStatus UdQp::Judge(const device::SendWr& wr, uint64_t length_bytes) const noexcept {
  // The handle may be another device's: which one a WR names is the client's word.
  if (wr.ah == nullptr || typeid(*wr.ah) != typeid(SoftAh)) return WcStatus::kLocQpOpErr;
  const auto& ah = static_cast<const SoftAh&>(*wr.ah);
  if (ah.pd_id() != pd_id_) return WcStatus::kLocQpOpErr;
  return length_bytes <= ah.mtu_bytes() ? WcStatus::kSuccess : WcStatus::kLocLenErr;
}

RunResult UdQp::Run(uint32_t budget_bytes, TimeNs) noexcept {
  RunResult result;
  while (attr_.state == QpState::kRts && !queue_.empty()) {
    if (result.spent_bytes >= budget_bytes) {
      result.more = true;
      break;
    }
    UdQp* const peer = LocalPeer(TargetOf(queue_.head()));
    const bool go_on = peer != nullptr ? SendLocally(*peer, &result)
                                       : SendBatch(budget_bytes - result.spent_bytes, &result);
    if (!go_on) break;
  }
  CheckDrained();
  return result;
}

// The datagram QP of this transport that a send is for. Null also if there is none: the network may
// know better, for the number may belong to another engine or to the CM. Groups are the network's.
UdQp* UdQp::LocalPeer(const Target& target) noexcept {
  if (!core_.config.local_path) return nullptr;
  if (looked_up_generation_ != core_.local_generation || looked_up_ != target.flow.remote) {
    looked_up_generation_ = core_.local_generation;
    looked_up_ = target.flow.remote;
    looked_up_is_local_ = core_.IsLocal(looked_up_);
  }
  return looked_up_is_local_ ? core_.qps.FindDatagram(target.qpn) : nullptr;
}

bool UdQp::SendLocally(UdQp& peer, RunResult* result) noexcept {
  const uint32_t index = queue_.head();
  const SendWqe& wqe = queue_[index];
  const SgeList source = SourceOf(index);
  WcStatus status = wqe.verdict;
  if (status == WcStatus::kSuccess && !IsAccessible(source, core_.mrs)) {
    status = WcStatus::kLocProtErr;
  }
  if (status != WcStatus::kSuccess) {
    FailHead(status);
    return false;
  }
  const Target& target = TargetOf(index);
  Flow flow = target.flow;
  std::swap(flow.local, flow.remote);
  result->spent_bytes += wqe.length_bytes + kPacketOverheadBytes;
  ++result->work;
  Count(core_.counters.local_messages);
  Count(core_.counters.local_bytes, wqe.length_bytes);
  // First, since the peer may be this very QP and go into the error state. The slots stay as they
  // are until the next post.
  CompleteHead(WcStatus::kSuccess);
  peer.Receive({.flow = flow,
                .qkey = target.qkey,
                .src_qpn = qpn_,
                .length_bytes = wqe.length_bytes,
                .imm_be = wqe.imm_be,
                .has_imm = wqe.has_imm(),
                .solicited = (wqe.flags & shm::kWorkSolicited) != 0,
                .source = source});
  return true;
}

// Sends up to one batch of WRs that go one way. False if there is nothing more to do in this turn.
bool UdQp::SendBatch(uint32_t budget_bytes, RunResult* result) noexcept {
  TxBatch& batch = core_.batch;
  batch.Clear();
  const uint32_t first = queue_.head();
  const Flow flow = TargetOf(first).flow;
  WcStatus error = WcStatus::kSuccess;
  uint32_t index = first;
  for (; index != queue_.tail() && batch.HasRoom() && batch.payload_bytes() < budget_bytes;
       ++index) {
    error = queue_[index].verdict;
    if (error != WcStatus::kSuccess) break;
    if (index != first && (TargetOf(index).flow != flow || LocalPeer(TargetOf(index)) != nullptr)) {
      break;
    }
    if (!AddToBatch(index)) {
      error = WcStatus::kLocProtErr;
      break;
    }
  }
  const size_t offered = batch.size();
  const size_t taken = offered == 0 ? 0 : core_.tx->Send(flow, batch.packets());
  uint64_t payload_bytes = 0;
  for (const TxPacket& packet : batch.packets().first(taken)) payload_bytes += packet.payload_bytes;
  for (size_t i = 0; i < taken; ++i) CompleteHead(WcStatus::kSuccess);
  Count(core_.counters.tx_packets, taken);
  Count(core_.counters.tx_payload_bytes, payload_bytes);
  result->spent_bytes += static_cast<uint32_t>(payload_bytes + taken * kPacketOverheadBytes);
  result->work += static_cast<int>(taken);
  if (taken < offered) {
    Count(core_.counters.tx_blocked);
    result->more = true;
    return false;
  }
  if (error != WcStatus::kSuccess) {
    FailHead(error);
    return false;
  }
  return true;
}

// False if a key does not hold.
bool UdQp::AddToBatch(uint32_t index) noexcept {
  const SendWqe& wqe = queue_[index];
  const Target& target = TargetOf(index);
  wire::PacketFields& fields = core_.batch.Add();
  fields.opcode = OpcodeOf(wqe);
  fields.solicited = (wqe.flags & shm::kWorkSolicited) != 0;
  fields.dest_qpn = wire::Qpn(target.qpn);
  fields.psn = wqe.first_psn;
  fields.deth = {wire::Qkey(target.qkey), wire::Qpn(qpn_)};
  fields.imm = ntohl(wqe.imm_be);
  SgeCursor cursor;
  return core_.batch.AddPayload(SourceOf(index), cursor, core_.mrs, wqe.length_bytes);
}

void UdQp::CompleteHead(WcStatus status) noexcept {
  const SendWqe& wqe = queue_[queue_.head()];
  ++done_count_;
  next_psn_ = wqe.end_psn();
  const bool report = (wqe.flags & shm::kWorkSignaled) != 0 || status != WcStatus::kSuccess;
  queue_.Pop();
  if (!report) return;
  device::Wc wc{};
  wc.wr_id = wqe.wr_id;
  wc.status = status;
  wc.opcode = device::WcOpcode::kSend;
  wc.byte_len = wqe.length_bytes;
  wc.wqe_count = done_count_;
  Complete(send_cq_, wc);
}

// Only the send queue is in error then: receives are not concerned.
void UdQp::FailHead(WcStatus status) noexcept {
  CompleteHead(status);
  MoveTo(QpState::kSqe);
}

void UdQp::FlushSends() noexcept {
  while (!queue_.empty()) CompleteHead(WcStatus::kWrFlushErr);
}

// Nothing is ever in flight.
void UdQp::CheckDrained() noexcept {
  if (!draining_ || attr_.state != QpState::kSqd) return;
  draining_ = false;
  if (!attr_.en_sqd_async_notify) return;
  core_.async->OnAsyncEvent({device::AsyncEventType::kSqDrained, init_.owner_token, qpn_});
}

}  // namespace rdmad::soft
