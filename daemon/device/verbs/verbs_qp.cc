#include "daemon/device/verbs/verbs_qp.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/qp_attr.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::verbs {
namespace {

using device::PostResult;
using device::QpResult;
using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;

// The lower half of a wr_id: kind in the top two bits, position below.
constexpr uint32_t kPositionMask = (1u << 30) - 1;
constexpr uint32_t kKindSend = 0;
constexpr uint32_t kKindRecv = 1;
constexpr uint32_t kKindDrained = 2;  // posted by us behind everything else

static_assert(static_cast<int>(WcStatus::kRetryExcErr) == IBV_WC_RETRY_EXC_ERR &&
              static_cast<int>(WcStatus::kGeneralErr) == IBV_WC_GENERAL_ERR &&
              static_cast<int>(WcOpcode::kRecvRdmaWithImm) == IBV_WC_RECV_RDMA_WITH_IMM);

struct Operation {
  ibv_wr_opcode posted;
  WcOpcode completed;
};

std::optional<Operation> OperationOf(WrOpcode opcode, device::QpType type) noexcept {
  const bool rc = type == device::QpType::kRc;
  const bool connected = type != device::QpType::kUd;
  switch (opcode) {
    case WrOpcode::kSend:
      return Operation{IBV_WR_SEND, WcOpcode::kSend};
    case WrOpcode::kSendWithImm:
      return Operation{IBV_WR_SEND_WITH_IMM, WcOpcode::kSend};
    case WrOpcode::kSendWithInv:
      if (rc) return Operation{IBV_WR_SEND_WITH_INV, WcOpcode::kSend};
      break;
    case WrOpcode::kRdmaWrite:
      if (connected) return Operation{IBV_WR_RDMA_WRITE, WcOpcode::kRdmaWrite};
      break;
    case WrOpcode::kRdmaWriteWithImm:
      if (connected) return Operation{IBV_WR_RDMA_WRITE_WITH_IMM, WcOpcode::kRdmaWrite};
      break;
    case WrOpcode::kRdmaRead:
      if (rc) return Operation{IBV_WR_RDMA_READ, WcOpcode::kRdmaRead};
      break;
    case WrOpcode::kCompareSwap:
      if (rc) return Operation{IBV_WR_ATOMIC_CMP_AND_SWP, WcOpcode::kCompSwap};
      break;
    case WrOpcode::kFetchAdd:
      if (rc) return Operation{IBV_WR_ATOMIC_FETCH_AND_ADD, WcOpcode::kFetchAdd};
      break;
    case WrOpcode::kLocalInv:
      if (rc) return Operation{IBV_WR_LOCAL_INV, WcOpcode::kLocalInv};
      break;
    case WrOpcode::kBindMw:
      break;
  }
  return std::nullopt;
}

WcStatus StatusOf(ibv_wc_status status) noexcept {
  return status <= IBV_WC_GENERAL_ERR ? static_cast<WcStatus>(status) : WcStatus::kGeneralErr;
}

uint8_t FlagsOf(const ibv_wc& wc) noexcept {
  uint8_t flags = 0;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) flags |= shm::kCqeWithImm;
  if ((wc.wc_flags & IBV_WC_WITH_INV) != 0) flags |= shm::kCqeWithInv;
  if ((wc.wc_flags & IBV_WC_GRH) != 0) flags |= shm::kCqeGrh;
  return flags;
}

ibv_qp_type TypeOf(device::QpType type) noexcept {
  switch (type) {
    case device::QpType::kRc:
      return IBV_QPT_RC;
    case device::QpType::kUc:
      return IBV_QPT_UC;
    case device::QpType::kUd:
      return IBV_QPT_UD;
  }
  return IBV_QPT_RC;
}

absl::Status CheckAtMost(const char* name, uint32_t asked, uint32_t limit) {
  if (asked <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("create_qp: ", name, "=", asked, " device_max=", limit));
}

// What a ring in front of the device can hold, which may be less than the driver rounded up to.
device::QpCap Granted(const ibv_qp_cap& hw) noexcept {
  device::QpCap cap;
  cap.max_send_wr = std::min(hw.max_send_wr, shm::kMaxQueueDepth);
  cap.max_recv_wr = std::min(hw.max_recv_wr, shm::kMaxQueueDepth);
  cap.max_send_sge = std::min(hw.max_send_sge, shm::kMaxSge);
  cap.max_recv_sge = std::min(hw.max_recv_sge, shm::kMaxSge);
  cap.max_inline_bytes = std::min(hw.max_inline_data, shm::kMaxInlineBytes);
  return cap;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsQp>> VerbsQp::Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd, const device::QpInit& init) {
  RD_RETURN_IF_ERROR(context->Check("create_qp"));
  const device::DeviceAttr& attr = context->attr();
  RD_RETURN_IF_ERROR(CheckAtMost("max_send_wr", init.cap.max_send_wr, attr.max_qp_wr));
  RD_RETURN_IF_ERROR(CheckAtMost("max_send_sge", init.cap.max_send_sge, attr.max_sge));
  RD_RETURN_IF_ERROR(CheckAtMost("max_recv_wr", init.cap.max_recv_wr, attr.max_qp_wr));
  RD_RETURN_IF_ERROR(CheckAtMost("max_recv_sge", init.cap.max_recv_sge, attr.max_sge));
  if (init.srq != nullptr) {
    return absl::UnimplementedError("create_qp: no shared receive queues on verbs devices yet");
  }
  auto& send_cq = static_cast<VerbsCq&>(*init.send_cq);
  auto& recv_cq = static_cast<VerbsCq&>(*init.recv_cq);
  ibv_qp_init_attr hw_init{};
  hw_init.send_cq = send_cq.hw();
  hw_init.recv_cq = recv_cq.hw();
  hw_init.qp_type = TypeOf(init.type);
  hw_init.sq_sig_all = 0;  // each WR says so itself
  hw_init.cap.max_send_wr = std::max(init.cap.max_send_wr, 1u);
  hw_init.cap.max_recv_wr = init.cap.max_recv_wr;
  hw_init.cap.max_send_sge = std::max(init.cap.max_send_sge, 1u);
  hw_init.cap.max_recv_sge = init.cap.max_recv_sge;
  hw_init.cap.max_inline_data = init.cap.max_inline_bytes;
  // One place more, for the mark behind refused sends.
  const uint32_t mark_places = hw_init.cap.max_send_wr < attr.max_qp_wr ? 1 : 0;
  hw_init.cap.max_send_wr += mark_places;
  ibv_qp* const hw = ibv_create_qp(pd, &hw_init);
  if (hw == nullptr) return context->Error("create_qp", errno);
  hw_init.cap.max_send_wr -= mark_places;
  std::unique_ptr<VerbsQp> qp(new VerbsQp(std::move(context), init, Granted(hw_init.cap)));
  qp->hw_ = hw;
  qp->qpn_ = hw->qp_num;
  hw->qp_context = qp.get();
  qp->context_->Add(HardwareKind::kQp, qp.get());
  return qp;
}

VerbsQp::VerbsQp(std::shared_ptr<OpenContext> context, const device::QpInit& init,
                 const device::QpCap& cap)
    : context_(std::move(context)),
      init_(init),
      cap_(cap),
      send_cq_(static_cast<VerbsCq&>(*init.send_cq)),
      recv_cq_(static_cast<VerbsCq&>(*init.recv_cq)),
      send_mask_(std::bit_ceil(std::max(cap.max_send_wr, 1u)) - 1),
      recv_mask_(std::bit_ceil(std::max(cap.max_recv_wr, 1u)) - 1),
      sends_(std::make_unique<SendEntry[]>(size_t{send_mask_} + 1)),
      recvs_(std::make_unique<uint64_t[]>(size_t{recv_mask_} + 1)) {}

VerbsQp::~VerbsQp() {
  RD_CHECK(!active_, "the engine lets go of a QP before control frees it");
  CloseHardware();
  context_->Remove(HardwareKind::kQp, this);
}

void VerbsQp::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_destroy_qp(std::exchange(hw_, nullptr));
}

void VerbsQp::Activate(device::TimeNs) noexcept {
  slot_ = context_->path().AddQp(*this);
  active_ = true;
}

void VerbsQp::Deactivate(device::TimeNs) noexcept {
  context_->path().RemoveQp(*this, slot_);
  active_ = false;
}

uint64_t VerbsQp::WrId(uint32_t kind, uint32_t position) const noexcept {
  return uint64_t{slot_} << 32 | kind << 30 | (position & kPositionMask);
}

// ---- posting ----

PostResult VerbsQp::CheckSend(const device::SendWr& wr) const noexcept {
  if (state_ < QpState::kRts) return PostResult::kWrongState;
  if (send_tail_ - send_head_ >= cap_.max_send_wr) return PostResult::kQueueFull;
  if (wr.sges.size() > cap_.max_send_sge) return PostResult::kTooManySges;
  uint64_t bytes = wr.inline_bytes;
  for (const device::Sge& sge : wr.sges) bytes += sge.length_bytes;
  if (bytes > context_->attr().max_msg_bytes || wr.inline_bytes > cap_.max_inline_bytes) {
    return PostResult::kTooLong;
  }
  return PostResult::kOk;
}

PostResult VerbsQp::PostSend(const device::SendWr& wr, device::TimeNs now) noexcept {
  const PostResult checked = CheckSend(wr);
  if (checked != PostResult::kOk) return checked;
  const std::optional<Operation> operation = OperationOf(wr.opcode, init_.type);
  if (!operation) return PostResult::kBadOpcode;
  sends_[send_tail_ & send_mask_] = {wr.wr_id, operation->completed};
  const uint32_t position = send_tail_++;
  if (context_->dead() || sends_drained_) {
    FinishSend(WcStatus::kWrFlushErr);
    return PostResult::kOk;
  }
  if (sends_refused_) return PostResult::kOk;  // flushes with the others
  unsigned int flags = 0;
  if (init_.signal_all || (wr.flags & shm::kWorkSignaled) != 0) flags |= IBV_SEND_SIGNALED;
  if ((wr.flags & shm::kWorkSolicited) != 0) flags |= IBV_SEND_SOLICITED;
  if ((wr.flags & shm::kWorkFence) != 0) flags |= IBV_SEND_FENCE;
  context_->path().AppendSend(*this, WrId(kKindSend, position), wr, operation->posted, flags);
  context_->path().Heat(send_cq_, now);
  return PostResult::kOk;
}

PostResult VerbsQp::PostRecv(const device::RecvWr& wr, device::TimeNs) noexcept {
  if (state_ < QpState::kInit) return PostResult::kWrongState;
  if (recv_tail_ - recv_head_ >= cap_.max_recv_wr) return PostResult::kQueueFull;
  if (wr.sges.size() > cap_.max_recv_sge) return PostResult::kTooManySges;
  recvs_[recv_tail_ & recv_mask_] = wr.wr_id;
  const uint32_t position = recv_tail_++;
  if (context_->dead()) {
    FinishRecv(WcStatus::kWrFlushErr);
    return PostResult::kOk;
  }
  if (recvs_are_ours_) {
    FlushOwnRecvs();
    return PostResult::kOk;
  }
  std::array<ibv_sge, shm::kMaxSge> sges;
  for (size_t i = 0; i < wr.sges.size(); ++i) {
    sges[i] = {wr.sges[i].addr, wr.sges[i].length_bytes, wr.sges[i].lkey};
  }
  ibv_recv_wr hw_wr{};
  hw_wr.wr_id = WrId(kKindRecv, position);
  hw_wr.sg_list = sges.data();
  hw_wr.num_sge = static_cast<int>(wr.sges.size());
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(hw_, &hw_wr, &bad) == 0) return PostResult::kOk;
  // The driver is out of memory, or worse.
  TakeOverRecvs(position);
  EnterError();
  context_->path().sink().OnAsyncEvent({device::AsyncEventType::kQpFatal, init_.owner_token, qpn_});
  FlushOwnRecvs();
  return PostResult::kOk;
}

void VerbsQp::OnSendRefused(uint64_t wr_id) noexcept {
  sends_refused_ = true;
  EnterError();
  const uint32_t refused = static_cast<uint32_t>(wr_id) & kPositionMask;
  ibv_send_wr mark{};
  mark.wr_id = WrId(kKindDrained, refused);
  mark.opcode = IBV_WR_SEND;
  mark.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(hw_, &mark, &bad) != 0) OnDrained(refused);
}

void VerbsQp::OnDrained(uint32_t refused) noexcept {
  sends_drained_ = true;
  // What the hardware did before without a word had asked for none.
  const uint32_t ahead = (refused - send_head_) & kPositionMask;
  if (ahead < send_tail_ - send_head_) send_head_ += ahead;
  WcStatus status = WcStatus::kLocQpOpErr;
  while (send_head_ != send_tail_) {
    FinishSend(status);
    status = WcStatus::kWrFlushErr;
  }
}

void VerbsQp::EnterError() noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(hw_, &attr, IBV_QP_STATE);
  state_ = QpState::kErr;
  TakeOverRecvs(recv_tail_);
}

void VerbsQp::TakeOverRecvs(uint32_t from) noexcept {
  if (std::exchange(recvs_are_ours_, true)) return;
  recvs_in_hardware_end_ = from;
}

// ---- completing ----

void VerbsQp::OnCompletion(const ibv_wc& wc) noexcept {
  const uint32_t low = static_cast<uint32_t>(wc.wr_id);
  const uint32_t position = low & kPositionMask;
  switch (low >> 30) {
    case kKindSend:
      OnSendDone(position, wc);
      break;
    case kKindRecv:
      OnRecvDone(position, wc);
      break;
    case kKindDrained:
      OnDrained(position);
      break;
    default:
      break;
  }
}

void VerbsQp::OnSendDone(uint32_t position, const ibv_wc& wc) noexcept {
  const uint32_t ahead = (position - send_head_) & kPositionMask;
  if (ahead >= send_tail_ - send_head_) return;  // done already; a driver at fault
  const uint32_t done = send_head_ + ahead;
  const SendEntry& entry = sends_[done & send_mask_];
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
  send_head_ = done + 1;
  send_cq_.sink().OnCompletion(out);
  NoteStatus(wc.status);
}

void VerbsQp::OnRecvDone(uint32_t position, const ibv_wc& wc) noexcept {
  if (recv_head_ == recv_tail_ || ((position - recv_head_) & kPositionMask) != 0) return;
  const bool good = wc.status == IBV_WC_SUCCESS;
  Wc out{};
  out.wr_id = recvs_[recv_head_ & recv_mask_];
  out.status = StatusOf(wc.status);
  out.opcode =
      good && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv;
  out.flags = static_cast<uint8_t>(shm::kCqeRecvQueue | (good ? FlagsOf(wc) : 0));
  out.solicited = true;  // the hardware does not say; a wake-up too many is none too few
  out.byte_len = good ? wc.byte_len : 0;
  out.imm_be = good ? wc.imm_data : 0;
  out.qpn = qpn_;
  out.src_qpn = good ? wc.src_qp : 0;
  out.vendor_err = wc.vendor_err;
  out.qp_cookie = init_.cookie;
  ++recv_head_;
  recv_cq_.sink().OnCompletion(out);
  NoteStatus(wc.status);
  FlushOwnRecvs();
}

void VerbsQp::FinishSend(WcStatus status) noexcept {
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

// A connected QP that completes anything but successfully has entered the error state. It is told
// so once more: a receive may have been posted when the hardware had flushed already.
void VerbsQp::NoteStatus(ibv_wc_status status) noexcept {
  if (status == IBV_WC_SUCCESS || init_.type == device::QpType::kUd || recvs_are_ours_) return;
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

// ---- states ----

QpResult VerbsQp::Modify(const device::QpAttr& attr, device::TimeNs) noexcept {
  const bool moves = (attr.mask & device::kQpAttrState) != 0;
  if (context_->dead()) {
    // What an application does to wind down goes through; nothing else does.
    if (!moves || (attr.state != QpState::kErr && attr.state != QpState::kReset)) {
      return QpResult::kGone;
    }
    if (attr.state == QpState::kReset) Forget();
    state_ = attr.state;
    return QpResult::kOk;
  }
  context_->path().FlushSends();
  if (moves && attr.state == QpState::kErr && state_ == QpState::kErr) return QpResult::kOk;
  ibv_qp_attr hw_attr;
  int mask = 0;
  ToIbv(attr, &hw_attr, &mask);
  const int error = ibv_modify_qp(hw_, &hw_attr, mask);
  if (error == EIO || error == ENODEV) return QpResult::kGone;
  if (error != 0) return QpResult::kBadValue;
  if (!moves) return QpResult::kOk;
  state_ = attr.state;
  if (attr.state == QpState::kErr) TakeOverRecvs(recv_tail_);
  if (attr.state == QpState::kReset) Forget();
  return QpResult::kOk;
}

// What the hardware has forgotten; completions that are still in its queue find no QP.
void VerbsQp::Forget() noexcept {
  send_head_ = send_tail_ = 0;
  recv_head_ = recv_tail_ = 0;
  sends_refused_ = sends_drained_ = recvs_are_ours_ = false;
  if (!active_) return;
  context_->path().RemoveQp(*this, slot_);
  slot_ = context_->path().AddQp(*this);
}

device::QpAttr VerbsQp::Query() const noexcept {
  device::QpAttr gone;
  gone.state = gone.current_state = state_;
  if (context_->dead()) return gone;
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  constexpr int kAll = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
                       IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
                       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN;
  if (ibv_query_qp(hw_, &attr, kAll, &init) != 0) return gone;
  device::QpAttr out = FromIbv(attr, kAll);
  out.current_state = out.state;
  return out;
}

}  // namespace rdmad::verbs
