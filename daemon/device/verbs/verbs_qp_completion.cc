// How the WRs of a VerbsQp complete: by the hardware, or without it.
#include <utility>

#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_mw.h"
#include "daemon/device/verbs/verbs_qp.h"
#include "daemon/device/verbs/wr_convert.h"
#include "daemon/device/verbs/wr_number.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::verbs {

using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;

void VerbsQp::OnCompletion(const ibv_wc& wc) noexcept {
  const uint32_t position = PositionOf(wc.wr_id);
  switch (KindOf(wc.wr_id)) {
    case WrKind::kSend:
      OnSendDone(position, wc);
      break;
    case WrKind::kRecv:
      OnRecvDone(position, wc);
      break;
    case WrKind::kDrained:
      if (sends_refused_ && !sends_drained_) OnDrained();
      break;
    case WrKind::kSrqRecv:
      break;  // the SRQ's
  }
}

void VerbsQp::OnSendDone(uint32_t position, const ibv_wc& wc) noexcept {
  const uint32_t ahead = (position - send_head_) & kPositionMask;
  if (ahead >= send_tail_ - send_head_) return;  // done already; a driver at fault
  const uint32_t done = send_head_ + ahead;
  const SendEntry entry = sends_[done & send_mask_];
  Wc out{};
  out.wr_id = entry.wr_id;
  out.status = StatusOf(wc.status);
  out.opcode = entry.opcode;
  out.byte_len = wc.status == IBV_WC_SUCCESS ? wc.byte_len : 0;
  out.qpn = qpn_;
  out.vendor_err = wc.vendor_err;
  out.wqe_count = done + 1;
  out.qp_cookie = init_.cookie;
  // Those before it were done without a completion.
  SettleWindows(done + 1, wc.status == IBV_WC_SUCCESS);
  send_head_ = done + 1;
  if (entry.signaled || wc.status != IBV_WC_SUCCESS) send_cq_.sink().OnCompletion(out);
  NoteStatus(wc.status);
  if (!last_told_) return;
  if (wc.status != IBV_WC_SUCCESS) refused_status_ = WcStatus::kWrFlushErr;
  // Also by one behind it, should the driver have forgotten it. In error a mark is surer.
  const bool is_last = static_cast<int32_t>(done - *last_told_) >= 0;
  if (is_last || (wc.status != IBV_WC_SUCCESS && can_mark())) EndSends(nullptr);
}

void VerbsQp::OnRecvDone(uint32_t position, const ibv_wc& wc) noexcept {
  if (recv_head_ == recv_tail_ || ((position - recv_head_) & kPositionMask) != 0) return;
  const uint64_t wr_id = recvs_[recv_head_++ & recv_mask_];
  Receive(wr_id, wc);
  FlushOwnRecvs();
}

void VerbsQp::Receive(uint64_t wr_id, const ibv_wc& wc) noexcept {
  const bool good = wc.status == IBV_WC_SUCCESS;
  Wc out{};
  out.wr_id = wr_id;
  out.status = StatusOf(wc.status);
  out.opcode =
      good && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv;
  out.flags = static_cast<uint8_t>(shm::kCqeRecvQueue | (good ? RecvFlagsOf(wc, init_.type) : 0));
  out.solicited = true;  // the hardware does not say; a wake-up too many is none too few
  out.byte_len = good ? wc.byte_len : 0;
  out.imm_be = good ? wc.imm_data : 0;
  out.qpn = qpn_;
  out.src_qpn = good ? wc.src_qp : 0;
  out.vendor_err = wc.vendor_err;
  out.qp_cookie = init_.cookie;
  if (good && init_.type == device::QpType::kUd) {
    out.slid = wc.slid;
    out.service_level = wc.sl;
    out.dlid_path_bits = wc.dlid_path_bits;
  }
  if ((out.flags & shm::kCqeWithInv) != 0) {
    VerbsMw* const window = context_->windows().FindWindow(wc.invalidated_rkey);
    if (window != nullptr) window->OnInvalidated();
  }
  recv_cq_.sink().OnCompletion(out);
  NoteStatus(wc.status);
}

// ---- memory windows ----

void VerbsQp::SettleWindows(uint32_t end, bool last_succeeded) noexcept {
  // Control closes the windows of a device that is gone.
  if (context_->dead()) return;
  for (uint32_t at = send_head_; window_changes_ != 0 && at != end; ++at) {
    const SendEntry& entry = sends_[at & send_mask_];
    if (entry.opcode != WcOpcode::kBindMw && entry.opcode != WcOpcode::kLocalInv) continue;
    --window_changes_;
    VerbsMw* const window = context_->windows().FindWindow(entry.key);
    if (window == nullptr) continue;
    const bool succeeded = at + 1 != end || last_succeeded;
    if (entry.opcode == WcOpcode::kLocalInv || entry.bind_lkey == 0) {
      if (succeeded) window->OnInvalidated();
    } else if (succeeded) {
      window->OnBound(entry.key, *this, entry.bind_lkey);
    } else {
      window->OnBindFailed();
    }
  }
}

void VerbsQp::NoteBindsUnderWay(std::optional<uint32_t> lkey) noexcept {
  if (window_changes_ == 0) return;
  for (uint32_t at = send_head_; at != send_tail_; ++at) {
    const SendEntry& entry = sends_[at & send_mask_];
    if (entry.opcode != WcOpcode::kBindMw || entry.bind_lkey == 0) continue;
    if (lkey && *lkey != entry.bind_lkey) continue;
    VerbsMw* const window = context_->windows().FindWindow(entry.key);
    if (window != nullptr) window->MayBeBound(*this, entry.bind_lkey);
  }
}

// ---- completing without the hardware ----

void VerbsQp::FinishSend(WcStatus status) noexcept {
  SettleWindows(send_head_ + 1, false);
  const SendEntry& entry = sends_[send_head_ & send_mask_];
  Wc out{};
  out.wr_id = entry.wr_id;
  out.status = status;
  out.opcode = entry.opcode;
  out.qpn = qpn_;
  out.wqe_count = ++send_head_;
  out.qp_cookie = init_.cookie;
  send_cq_.sink().OnCompletion(out);
}

void VerbsQp::OnDrained() noexcept {
  sends_drained_ = true;
  const uint32_t left = send_tail_ - send_head_;
  if (refused_ - send_head_ < left) {
    for (uint32_t at = send_head_; at != refused_; ++at) {
      if (!sends_[at & send_mask_].signaled) continue;
      // The driver has forgotten it.
      SkipSends(at);
      FinishSend(WcStatus::kWrFlushErr);
    }
    SkipSends(refused_);
  }
  WcStatus status = refused_status_;
  while (send_head_ != send_tail_) {
    FinishSend(status);
    status = WcStatus::kWrFlushErr;
  }
}

void VerbsQp::SkipSends(uint32_t end) noexcept {
  SettleWindows(end, true);
  send_head_ = end;
}

void VerbsQp::FinishRecv(WcStatus status) noexcept {
  Wc out{};
  out.wr_id = recvs_[recv_head_ & recv_mask_];
  out.status = status;
  out.opcode = WcOpcode::kRecv;
  out.flags = shm::kCqeRecvQueue;
  out.solicited = true;
  out.qpn = qpn_;
  out.qp_cookie = init_.cookie;
  ++recv_head_;
  recv_cq_.sink().OnCompletion(out);
}

// A QP that completes anything but successfully has entered an error state. If that is kErr, the
// hardware is told so once more: a receive may have been posted when it had flushed already.
void VerbsQp::NoteStatus(ibv_wc_status status) noexcept {
  if (status == IBV_WC_SUCCESS || recvs_are_ours_) return;
  if (init_.type != device::QpType::kRc) {
    // After a send it may be kSqe, and of a UD QP's receive none at all.
    if (state_ == QpState::kSqe && status == IBV_WC_WR_FLUSH_ERR) return;
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    if (ibv_query_qp(hw_, &attr, IBV_QP_STATE, &init) != 0) return;
    if (attr.qp_state == IBV_QPS_SQE) state_ = QpState::kSqe;
    if (attr.qp_state != IBV_QPS_ERR) return;
  }
  EnterError();
}

void VerbsQp::FlushOwnRecvs() noexcept {
  if (!recvs_are_ours_ || recv_head_ != recvs_in_hardware_end_) return;
  while (recv_head_ != recv_tail_) FinishRecv(WcStatus::kWrFlushErr);
  recvs_in_hardware_end_ = recv_head_;
}

void VerbsQp::FlushAll() noexcept {
  while (send_head_ != send_tail_) FinishSend(WcStatus::kWrFlushErr);
  while (recv_head_ != recv_tail_) FinishRecv(WcStatus::kWrFlushErr);
}

void VerbsQp::Die() noexcept {
  if (state_ != QpState::kReset) state_ = QpState::kErr;
  FlushAll();
}

}  // namespace rdmad::verbs
