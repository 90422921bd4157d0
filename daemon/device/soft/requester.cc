#include "daemon/device/soft/requester.h"

#include "daemon/device/soft/soft_qp.h"

namespace rdmad::soft {

using device::PostResult;
using device::QpState;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;
using wire::Opcode;
using wire::Psn;

namespace {

constexpr uint32_t kAtomicBytes = 8;

WcOpcode CompletionOpcode(WrOpcode opcode) noexcept {
  switch (opcode) {
    case WrOpcode::kSend:
    case WrOpcode::kSendWithImm:
    case WrOpcode::kSendWithInv:
      return WcOpcode::kSend;
    case WrOpcode::kRdmaWrite:
    case WrOpcode::kRdmaWriteWithImm:
      return WcOpcode::kRdmaWrite;
    case WrOpcode::kRdmaRead:
      return WcOpcode::kRdmaRead;
    case WrOpcode::kCompareSwap:
      return WcOpcode::kCompSwap;
    case WrOpcode::kFetchAdd:
      return WcOpcode::kFetchAdd;
    case WrOpcode::kLocalInv:
      return WcOpcode::kLocalInv;
    case WrOpcode::kBindMw:
      return WcOpcode::kBindMw;
  }
  return WcOpcode::kSend;
}

}  // namespace

Requester::Requester(QpContext& qp)
    : qp_(qp),
      queue_(qp.cap.max_send_wr, qp.cap.max_send_sge, qp.cap.max_inline_bytes),
      local_(qp, *this) {}

void Requester::Start() noexcept {
  una_ = max_psn_ = Psn(qp_.attr.sq_psn);
  recovery_psn_ = una_;
  queue_.Reset(una_);
  next_ = {};
  next_.psn = una_;
  acked_cost_ = 0;
  retries_left_ = qp_.attr.retry_count;
  rnr_retries_left_ = qp_.attr.rnr_retry;
  window_.Reset(qp_.core.config.initial_window_bytes, qp_.core.config.max_window_bytes,
                qp_.mtu_bytes);
  round_trip_.Reset();
}

void Requester::Reset() noexcept {
  qp_.core.timers.Cancel(qp_.timer);
  local_.Reset();
  Start();
  done_count_ = 0;
  read_head_ = bound_head_ = 0;
  response_cursor_valid_ = gap_seen_ = sampling_ = probed_ = went_back_ = false;
  attempt_ = probes_ = 0;
  deadline_ = probe_at_ = kNever;
  rnr_until_ = 0;
  draining_ = false;
}

void Requester::Flush() noexcept {
  qp_.core.timers.Cancel(qp_.timer);
  local_.Reset();
  rnr_until_ = 0;
  while (!queue_.empty()) CompleteHead(WcStatus::kWrFlushErr);
}

device::Wc Requester::WcFor(const SendWqe& wqe, WcStatus status) const noexcept {
  device::Wc wc{};
  wc.wr_id = wqe.wr_id;
  wc.status = status;
  wc.opcode = CompletionOpcode(wqe.opcode);
  wc.byte_len = wqe.length_bytes;
  wc.wqe_count = done_count_;
  return wc;
}

void Requester::CompleteHead(WcStatus status) noexcept {
  const SendWqe& wqe = queue_[queue_.head()];
  ++done_count_;
  const bool report = (wqe.flags & shm::kWorkSignaled) != 0 || status != WcStatus::kSuccess;
  // The slot stays as it is until the next post, so the WR may be read after it has left.
  queue_.Pop();
  if (report) qp_.Complete(*qp_.send_cq, WcFor(wqe, status));
}

void Requester::FailHead(WcStatus status, TimeNs now) noexcept {
  CompleteHead(status);
  qp_.self.EnterSendError(now);
}

void Requester::Resume() noexcept {
  // The PSNs of what was flushed are skipped: a UC peer takes any at the start of a message.
  una_ = max_psn_ = recovery_psn_ = queue_.next_psn();
  next_ = {};
  next_.index = queue_.head();
  next_.psn = una_;
  next_.cost = next_.last_ack_cost = acked_cost_;
}

void Requester::FinishHeadLocally() noexcept {
  const SendWqe& wqe = queue_[queue_.head()];
  const uint64_t cost = CostOf(wqe, 0, wqe.packet_count);
  AdvancePosition(next_, wqe, wqe.packet_count);
  next_.cost += cost;
  next_.last_ack_cost = acked_cost_ = next_.cost;
  una_ = max_psn_ = next_.psn;
  recovery_psn_ = una_;
  rnr_retries_left_ = qp_.attr.rnr_retry;
  CompleteHead(WcStatus::kSuccess);
}

PostResult Requester::Post(const device::SendWr& wr) noexcept {
  const QpState state = qp_.state();
  const bool in_error = state == QpState::kErr || state == QpState::kSqe;
  if (!in_error && !IsSending()) return PostResult::kWrongState;
  if (queue_.full()) return PostResult::kQueueFull;

  if (wr.verdict != WcStatus::kSuccess) {
    Enqueue(wr, wr.flags, 0, 1, wr.verdict);
    return PostResult::kOk;
  }

  uint8_t flags = wr.flags;
  if (qp_.init.signal_all) flags |= shm::kWorkSignaled;
  const bool is_inline = (flags & shm::kWorkInline) != 0;
  uint64_t length_bytes = 0;
  if (is_inline) {
    for (const auto piece : wr.inline_data.pieces) length_bytes += piece.size();
    if (length_bytes > qp_.cap.max_inline_bytes) return PostResult::kTooLong;
  } else {
    if (wr.sges.size() > qp_.cap.max_send_sge) return PostResult::kTooManySges;
    length_bytes = TotalBytes(wr.sges);
  }

  WcStatus verdict = WcStatus::kSuccess;
  bool is_local = false;
  switch (wr.opcode) {
    case WrOpcode::kSend:
    case WrOpcode::kSendWithImm:
    case WrOpcode::kRdmaWrite:
    case WrOpcode::kRdmaWriteWithImm:
      break;
    case WrOpcode::kSendWithInv:
      if (!qp_.reliable()) return PostResult::kBadOpcode;
      break;
    case WrOpcode::kLocalInv:
    case WrOpcode::kBindMw:
      is_local = true;
      length_bytes = 0;
      break;
    case WrOpcode::kCompareSwap:
    case WrOpcode::kFetchAdd:
      if (length_bytes != kAtomicBytes) verdict = WcStatus::kLocLenErr;
      [[fallthrough]];
    case WrOpcode::kRdmaRead:
      if (is_inline || !qp_.reliable() || (!in_error && qp_.attr.max_rd_atomic == 0)) {
        return PostResult::kBadOpcode;
      }
      break;
    default:  // the opcode came out of a client's ring
      return PostResult::kBadOpcode;
  }
  // Checked here and in 64 bits, so that not one packet of such a message is sent; reported in its
  // turn.
  if (length_bytes > kMaxMessageBytes) verdict = WcStatus::kLocLenErr;
  if (verdict != WcStatus::kSuccess) length_bytes = 0;

  const auto length = static_cast<uint32_t>(length_bytes);
  const uint32_t mtu = std::max(qp_.mtu_bytes, 1u);  // a QP in kErr may never have had one
  const uint32_t packets = is_local ? 0 : length == 0 ? 1 : (length - 1) / mtu + 1;
  Enqueue(wr, flags, length, packets, verdict);
  return PostResult::kOk;
}

void Requester::Enqueue(const device::SendWr& wr, uint8_t flags, uint32_t length_bytes,
                        uint32_t packets, WcStatus verdict) noexcept {
  queue_.Push(wr, flags, length_bytes, packets, verdict);
  if (IsSending()) {
    qp_.Wake();
  } else {
    CompleteHead(WcStatus::kWrFlushErr);
  }
}

SgeList Requester::LocalList(uint32_t index, uint32_t access) const noexcept {
  return {queue_.Sges(index), qp_.pd_id, access, queue_[index].is_inline()};
}

uint64_t Requester::CostOf(const SendWqe& wqe, uint32_t first_packet,
                           uint32_t end_packet) const noexcept {
  const auto bytes_before = [&](uint32_t packet) {
    return std::min<uint64_t>(uint64_t{packet} * qp_.mtu_bytes, wqe.length_bytes);
  };
  return bytes_before(end_packet) - bytes_before(first_packet) +
         uint64_t{kPacketOverheadBytes} * (end_packet - first_packet);
}

RunResult Requester::Run(uint32_t budget_bytes, TimeNs now) noexcept {
  RunResult result;
  while (IsSending() && rnr_until_ == 0 && next_.index != queue_.tail()) {
    if (result.spent_bytes >= budget_bytes) {
      result.more = true;
      break;
    }
    const uint32_t left = budget_bytes - result.spent_bytes;
    const uint32_t batch_bytes = TxBatch::WholePackets(qp_.mtu_bytes) * window_.packet_cost();
    if (result.spent_bytes > 0 && left < batch_bytes / 2) {  // no crumbs
      result.more = true;
      break;
    }
    if (queue_[next_.index].is_local()) {
      if (!RunLocalOperation(now, &result)) break;
    } else if (AllAnswered() && next_.packet == 0 && local_.HasPeer()) {
      // A message of which some packets went over the network is finished there.
      if (!local_.Run(left, now, &result)) break;
    } else {
      local_.Reset();  // a half-copied message whose peer went away starts again, on the network
      if (!SendBatch(left, now, &result)) break;
    }
  }
  CheckDrained();
  return result;
}

// Builds and sends up to one batch. False if there is nothing more to do in this turn.
bool Requester::SendBatch(uint32_t budget_bytes, TimeNs now, RunResult* result) noexcept {
  TxBatch& batch = qp_.core.batch;
  batch.Clear();
  Position at = next_;
  WcStatus error = WcStatus::kSuccess;
  Built built = Built::kPacket;
  const uint32_t whole = TxBatch::WholePackets(qp_.mtu_bytes);
  while (batch.HasRoom() && batch.size() < whole && at.cost - next_.cost < budget_bytes) {
    built = BuildPacket(at, &error);
    if (built != Built::kPacket) break;
  }
  const size_t offered = batch.size();
  size_t taken = 0;
  bool blocked = false;
  if (offered > 0) {
    taken = qp_.core.tx->Send(qp_.flow, batch.packets());
    if (taken < offered) {
      blocked = true;
      Count(qp_.core.counters.tx_blocked);
      // Builds those again that went, to know where that leaves us.
      at = next_;
      batch.Clear();
      while (batch.size() < taken) (void)BuildPacket(at, &error);
    }
    Count(qp_.core.counters.tx_packets, taken);
    Count(qp_.core.counters.tx_payload_bytes, batch.payload_bytes());
    result->spent_bytes += static_cast<uint32_t>(at.cost - next_.cost);
    result->work += static_cast<int>(taken);
    const Position before = std::exchange(next_, at);
    if (taken > 0) OnSent(before, at, now);
  }
  if (blocked) {
    result->more = true;
    return false;
  }
  if (built == Built::kError) {
    // Those before it complete first; each answer wakes the QP and brings it back here.
    if (next_.index == queue_.head()) FailHead(error, now);
    return false;
  }
  // Without answers nothing would bring the QP back here.
  return built == Built::kPacket || (taken > 0 && !qp_.reliable());
}

void Requester::OnSent(const Position& before, const Position& after, TimeNs now) noexcept {
  if (!qp_.reliable()) {
    max_psn_ = after.psn;
    (void)AdvanceTo(after.psn);
    return;
  }
  const bool was_idle = AllAnswered();
  if (wire::IsBefore(before.psn, max_psn_)) {
    const auto again = std::min<int32_t>(max_psn_ - before.psn, after.psn - before.psn);
    Count(qp_.core.counters.retransmitted_packets, static_cast<uint64_t>(again));
  }
  if (wire::IsAfter(after.psn, max_psn_)) {
    // Measured from the last packet of a batch, and only if it asks for an answer and was never
    // sent before.
    if (!sampling_ && after.last_ack_cost == after.cost) {
      sampling_ = true;
      sample_psn_ = after.psn - 1;
      sample_sent_at_ = now;
    }
    max_psn_ = after.psn;
  }
  if (was_idle) RestartClocks(now);
  UpdateTimer();
}

void Requester::CheckDrained() noexcept {
  if (!draining_ || qp_.state() != QpState::kSqd) return;
  if (!AllAnswered() || next_.packet != 0 || local_.in_progress()) return;
  draining_ = false;
  if (qp_.attr.en_sqd_async_notify) qp_.Raise(device::AsyncEventType::kSqDrained);
}

}  // namespace rdmad::soft
