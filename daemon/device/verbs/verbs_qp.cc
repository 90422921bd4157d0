#include "daemon/device/verbs/verbs_qp.h"

#include <algorithm>
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
#include "daemon/device/verbs/verbs_mw.h"
#include "daemon/device/verbs/verbs_srq.h"
#include "daemon/device/verbs/wr_convert.h"
#include "daemon/device/verbs/wr_number.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::verbs {
namespace {

using device::PostResult;
using device::QpResult;
using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;

constexpr size_t kMaxInlinePieces = std::tuple_size_v<decltype(device::InlineData::pieces)>;

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

// A bind of no bytes.
bool Unbinds(const device::SendWr& wr) noexcept {
  return wr.compare_add == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsQp>> VerbsQp::Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd, const device::QpInit& init) {
  RD_RETURN_IF_ERROR(context->Check("create_qp"));
  const device::DeviceAttr& attr = context->attr();
  RD_RETURN_IF_ERROR(CheckAtMost("max_send_wr", init.cap.max_send_wr, attr.max_qp_wr));
  RD_RETURN_IF_ERROR(CheckAtMost("max_send_sge", init.cap.max_send_sge, attr.max_sge));
  if (init.srq == nullptr) {
    RD_RETURN_IF_ERROR(CheckAtMost("max_recv_wr", init.cap.max_recv_wr, attr.max_qp_wr));
    RD_RETURN_IF_ERROR(CheckAtMost("max_recv_sge", init.cap.max_recv_sge, attr.max_sge));
  }
  auto& send_cq = static_cast<VerbsCq&>(*init.send_cq);
  auto& recv_cq = static_cast<VerbsCq&>(*init.recv_cq);
  ibv_qp_init_attr hw_init{};
  hw_init.send_cq = send_cq.hw();
  hw_init.recv_cq = recv_cq.hw();
  hw_init.qp_type = TypeOf(init.type);
  hw_init.sq_sig_all = 0;  // each WR says so itself
  hw_init.cap.max_send_wr = std::max(init.cap.max_send_wr, 1u);
  hw_init.cap.max_send_sge = std::max(init.cap.max_send_sge, 1u);
  // Inline bytes may come in pieces (device::InlineData), each of which is an SGE to the driver.
  if (init.cap.max_inline_bytes != 0) {
    hw_init.cap.max_send_sge = std::max<uint32_t>(hw_init.cap.max_send_sge, kMaxInlinePieces);
  }
  if (init.srq != nullptr) {
    hw_init.srq = static_cast<VerbsSrq&>(*init.srq).hw();
  } else {
    hw_init.cap.max_recv_wr = init.cap.max_recv_wr;
    hw_init.cap.max_recv_sge = init.cap.max_recv_sge;
  }
  hw_init.cap.max_inline_data = init.cap.max_inline_bytes;
  // One place more, for the mark behind refused sends.
  const uint32_t mark_places = hw_init.cap.max_send_wr < attr.max_qp_wr ? 1 : 0;
  hw_init.cap.max_send_wr += mark_places;
  ibv_qp* const hw = ibv_create_qp(pd, &hw_init);
  if (hw == nullptr) return context->Error("create_qp", errno);
  hw_init.cap.max_send_wr -= mark_places;
  if (init.srq != nullptr) hw_init.cap.max_recv_wr = hw_init.cap.max_recv_sge = 0;
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
      srq_(static_cast<VerbsSrq*>(init.srq)),
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
  if (srq_ != nullptr) srq_->AddQp(*this);
  active_ = true;
}

void VerbsQp::Deactivate(device::TimeNs now) noexcept {
  if (binds_ && !context_->dead()) {
    NoteBindsUnderWay(std::nullopt);
    context_->windows().CloseBoundBy(*this);
  }
  if (srq_ != nullptr) LeaveSrq(now);
  context_->path().RemoveQp(*this, slot_);
  active_ = false;
}

// What it holds of the SRQ's comes back by the completions that it still makes, to whose CQ it must
// be known until then.
void VerbsQp::LeaveSrq(device::TimeNs now) noexcept {
  if (!context_->dead() && state_ != QpState::kReset) {
    if (state_ != QpState::kErr) EnterError();
    context_->path().Drain(recv_cq_, now);
  }
  srq_->RemoveQp(*this);
}

// ---- posting ----

PostResult VerbsQp::CheckSend(const device::SendWr& wr) const noexcept {
  if (state_ < QpState::kRts) return PostResult::kWrongState;
  if (send_tail_ - send_head_ >= cap_.max_send_wr) return PostResult::kQueueFull;
  if (wr.verdict != WcStatus::kSuccess) return PostResult::kOk;
  if (wr.sges.size() > cap_.max_send_sge) return PostResult::kTooManySges;
  uint64_t bytes = wr.inline_bytes;
  for (const device::Sge& sge : wr.sges) bytes += sge.length_bytes;
  if (bytes > context_->attr().max_msg_bytes || wr.inline_bytes > cap_.max_inline_bytes) {
    return PostResult::kTooLong;
  }
  // In the error state it needs no address: it goes nowhere.
  const bool addressed = init_.type != device::QpType::kUd || wr.ah != nullptr;
  return addressed || state_ == QpState::kErr ? PostResult::kOk : PostResult::kBadOpcode;
}

bool VerbsQp::CanBind(const device::SendWr& wr) const noexcept {
  constexpr uint64_t kRemote =
      device::kAccessRemoteWrite | device::kAccessRemoteRead | device::kAccessRemoteAtomic;
  const VerbsMw* const window = context_->windows().FindWindow(wr.rkey);
  if (window == nullptr || window->hw() == nullptr || !wr.sges.empty() || wr.inline_bytes != 0) {
    return false;
  }
  return Unbinds(wr) ||
         ((wr.swap & ~kRemote) == 0 && context_->windows().FindRegion(wr.bind_lkey) != nullptr);
}

PostResult VerbsQp::PostSend(const device::SendWr& wr, device::TimeNs now) noexcept {
  const PostResult checked = CheckSend(wr);
  if (checked != PostResult::kOk) return checked;
  const std::optional<Operation> operation = OperationOf(wr.opcode, init_.type);
  if (!operation) return PostResult::kBadOpcode;
  const bool binds = operation->posted == IBV_WR_BIND_MW;
  const uint32_t bind_lkey = binds && !Unbinds(wr) ? wr.bind_lkey : 0;
  if (binds || operation->posted == IBV_WR_LOCAL_INV) ++window_changes_;
  const bool signaled = (SendFlagsOf(wr, init_.signal_all) & IBV_SEND_SIGNALED) != 0;
  sends_[send_tail_ & send_mask_] = {wr.wr_id, operation->completed, binds ? wr.rkey : wr.imm_be,
                                     bind_lkey, signaled, signaled};
  const uint32_t position = send_tail_++;
  if (context_->dead() || sends_drained_) {
    FinishSend(WcStatus::kWrFlushErr);
  } else if (sends_refused_) {
    // flushes with the others
  } else if (wr.verdict != WcStatus::kSuccess) {
    RefuseSend(position, wr.verdict, now);
  } else if (init_.type == device::QpType::kUd && wr.ah == nullptr) {
    RefuseSend(position, WcStatus::kWrFlushErr, now);
  } else if (binds && !CanBind(wr)) {
    RefuseSend(position, WcStatus::kMwBindErr, now);
  } else {
    Append(position, wr, operation->posted, now);
  }
  return PostResult::kOk;
}

void VerbsQp::Append(uint32_t position, const device::SendWr& wr, ibv_wr_opcode opcode,
                     device::TimeNs now) noexcept {
  VerbsDataPath& path = context_->path();
  const uint64_t number = MakeWrNumber(slot_, WrKind::kSend, position);
  const unsigned int flags = SendFlagsOf(wr, init_.signal_all);
  if (opcode == IBV_WR_BIND_MW && Unbinds(wr)) {
    // Not every driver binds to nothing (rxe); all invalidate.
    device::SendWr invalidation = wr;
    invalidation.imm_be = context_->windows().FindWindow(wr.rkey)->hw()->rkey;
    path.AppendSend(*this, number, invalidation, IBV_WR_LOCAL_INV, flags);
  } else {
    path.AppendSend(*this, number, wr, opcode, flags);
  }
  if (opcode == IBV_WR_BIND_MW && !Unbinds(wr)) {
    binds_ = true;
    context_->windows().NoteBind(wr.bind_lkey);
    // The driver reads the window's present key when it gets the WR.
    path.FlushSends();
    if (!sends_refused_) context_->windows().FindWindow(wr.rkey)->OnBindPosted(wr.rkey);
  }
  path.Heat(send_cq_, now);
}

PostResult VerbsQp::PostRecv(const device::RecvWr& wr, device::TimeNs) noexcept {
  if (srq_ != nullptr) return PostResult::kBadOpcode;
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
  context_->path().AppendRecv(*this, MakeWrNumber(slot_, WrKind::kRecv, position), wr.sges);
  return PostResult::kOk;
}

// The driver is out of memory, or worse.
void VerbsQp::OnRecvsRefused(const ibv_recv_wr& refused) noexcept {
  TakeOverRecvs(recv_head_ + ((PositionOf(refused.wr_id) - recv_head_) & kPositionMask));
  EnterError();
  context_->path().sink().OnAsyncEvent({device::AsyncEventType::kQpFatal, init_.owner_token, qpn_});
}

void VerbsQp::OnSendRefused(const ibv_send_wr& refused) noexcept {
  ibv_ah* const ah = init_.type == device::QpType::kUd ? refused.wr.ud.ah : nullptr;
  NoteRefused(PositionOf(refused.wr_id), WcStatus::kLocQpOpErr, ah);
}

void VerbsQp::RefuseSend(uint32_t position, WcStatus status, device::TimeNs now) noexcept {
  // What is not posted yet can still be made to tell when it is done.
  const bool is_told = context_->path().SignalLast(*this);
  context_->path().FlushSends();
  if (sends_refused_) return;  // one before it
  if (is_told) sends_[(position - 1) & send_mask_].tells = true;
  // What the hardware says of those before it may have failed the QP already.
  context_->path().Drain(send_cq_, now);
  NoteRefused(position, status, nullptr);
  context_->path().Heat(send_cq_, now);
}

void VerbsQp::NoteRefused(uint32_t position, WcStatus status, ibv_ah* ah) noexcept {
  sends_refused_ = true;
  refused_ = send_head_ + ((position - send_head_) & kPositionMask);
  refused_status_ = status;
  for (uint32_t at = refused_; at != send_head_ && !last_told_; --at) {
    if (sends_[(at - 1) & send_mask_].tells) last_told_ = at - 1;
  }
  if (!last_told_) EndSends(ah);
}

void VerbsQp::EndSends(ibv_ah* ah) noexcept {
  last_told_.reset();
  if (state_ != QpState::kErr) EnterError();
  ibv_send_wr mark{};
  mark.wr_id = MakeWrNumber(slot_, WrKind::kDrained, refused_);
  mark.opcode = IBV_WR_SEND;
  mark.send_flags = IBV_SEND_SIGNALED;
  mark.wr.ud.ah = ah;
  ibv_send_wr* bad = nullptr;
  const bool marks = send_head_ != refused_ && (can_mark() || ah != nullptr);
  if (!marks || ibv_post_send(hw_, &mark, &bad) != 0) OnDrained();
}

void VerbsQp::EnterError() noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(hw_, &attr, IBV_QP_STATE);
  state_ = QpState::kErr;
  TakeOverRecvs(recv_tail_ - context_->path().DropRecvs(*this));
  FlushOwnRecvs();
}

void VerbsQp::TakeOverRecvs(uint32_t from) noexcept {
  if (std::exchange(recvs_are_ours_, true)) return;
  recvs_in_hardware_end_ = from;
}

// ---- states ----

QpResult VerbsQp::Modify(const device::QpAttr& attr, device::TimeNs now) noexcept {
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
  if ((attr.mask & device::kQpAttrPort) != 0 && attr.port != 1) return QpResult::kBadValue;
  context_->path().FlushSends();
  if (moves && attr.state == QpState::kErr && state_ == QpState::kErr) return QpResult::kOk;
  if (moves && attr.state == QpState::kReset && srq_ != nullptr) {
    context_->path().Drain(recv_cq_, now);  // of the SRQ's receives nobody tells after a reset
  }
  ibv_qp_attr hw_attr;
  int mask = 0;
  ToIbv(attr, context_->port(), &hw_attr, &mask);
  const int error = ibv_modify_qp(hw_, &hw_attr, mask);
  if (error == EIO || error == ENODEV) return QpResult::kGone;
  if (error != 0) return QpResult::kBadValue;
  if ((attr.mask & device::kQpAttrPathMtu) != 0) path_mtu_ = attr.path_mtu;
  if (!moves) return QpResult::kOk;
  const bool goes_on = state_ == QpState::kSqd && attr.state == QpState::kRts;
  state_ = attr.state;
  if (goes_on && send_head_ != send_tail_) StartStoppedSends();
  failed_.store(false, std::memory_order_relaxed);
  if (attr.state == QpState::kErr) {
    TakeOverRecvs(recv_tail_);
    if (last_told_ && can_mark()) EndSends(nullptr);
  }
  if (attr.state == QpState::kReset) Forget();
  return QpResult::kOk;
}

// What waited in kSqd, rxe (Linux 6.1) starts with the next post only. One that librxe refuses, after
// it has told the kernel to look, is a post too: no provider takes an atomic of nothing.
void VerbsQp::StartStoppedSends() noexcept {
  if (!context_->is_rxe()) return;
  ibv_send_wr refused{};
  refused.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  refused.wr.atomic.remote_addr = 1;
  ibv_send_wr* bad = nullptr;
  [[maybe_unused]] const int error = ibv_post_send(hw_, &refused, &bad);
}

// What the hardware has forgotten; completions that are still in its queue find no QP.
void VerbsQp::Forget() noexcept {
  NoteBindsUnderWay(std::nullopt);
  window_changes_ = 0;
  send_head_ = send_tail_ = 0;
  recv_head_ = recv_tail_ = 0;
  sends_refused_ = sends_drained_ = recvs_are_ours_ = false;
  last_told_.reset();
  if (!active_) return;
  context_->path().RemoveQp(*this, slot_);
  slot_ = context_->path().AddQp(*this);
}

device::QpAttr VerbsQp::Known() const noexcept {
  device::QpAttr known;
  // (An event of before a reset may come after it.)
  const bool failed = state_ != QpState::kReset && failed_.load(std::memory_order_relaxed);
  known.state = failed ? QpState::kErr : state_;
  known.current_state = known.state;
  known.path_mtu = path_mtu_;
  return known;
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
