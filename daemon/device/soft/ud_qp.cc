#include "daemon/device/soft/ud_qp.h"

#include <bit>

#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/qp_attr_rules.h"
#include "daemon/device/soft/soft_qp.h"

namespace rdmad::soft {

using device::PostResult;
using device::QpAttr;
using device::QpResult;
using device::QpState;
using enum device::QpAttrMask;

namespace {

constexpr uint32_t kPrivilegedQkey = 1u << 31;

device::QpCap GrantedCap(const SoftQpInit& init) noexcept {
  device::QpCap cap = init.cap;
  if (init.init.srq != nullptr) cap.max_recv_wr = cap.max_recv_sge = 0;
  return cap;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UdQp>> UdQp::Create(Transport& transport, const SoftQpInit& asked) {
  SoftQpInit init = asked;
  init.cap = GrantedCap(asked);
  RD_RETURN_IF_ERROR(CheckQpInit(init));
  return std::unique_ptr<UdQp>(new UdQp(transport.core(), init));
}

UdQp::UdQp(TransportCore& core, const SoftQpInit& init)
    : TransportQp(this),
      core_(core),
      qpn_(init.qpn),
      pd_id_(init.pd->id()),
      init_(init.init),
      cap_(init.cap),
      send_cq_(static_cast<SoftCq&>(*init.init.send_cq)),
      recv_cq_(static_cast<SoftCq&>(*init.init.recv_cq)),
      srq_(static_cast<SoftSrq*>(init.init.srq)),
      lease_(std::make_shared<const SourceLookup>(init.source)),
      active_(this),
      queue_(cap_.max_send_wr, cap_.max_send_sge, cap_.max_inline_bytes),
      target_mask_(std::bit_ceil(std::max(cap_.max_send_wr, 1u)) - 1),
      targets_(std::make_unique<Target[]>(size_t{target_mask_} + 1)),
      receives_(cap_.max_recv_wr, cap_.max_recv_sge) {}

UdQp::~UdQp() {
  RD_CHECK(!activated_, "the engine lets go of a QP before control frees it");
}

void UdQp::Activate(TimeNs) noexcept {
  core_.qps.Insert(qpn_, this);
  activated_ = true;
}

void UdQp::Deactivate(TimeNs) noexcept {
  MoveTo(QpState::kReset);
  core_.qps.Remove(qpn_);
  activated_ = false;
}

PostResult UdQp::PostRecv(const device::RecvWr& wr, TimeNs) noexcept {
  if (attr_.state == QpState::kReset) return PostResult::kWrongState;
  if (receives_.full()) return PostResult::kQueueFull;
  if (wr.sges.size() > cap_.max_recv_sge) return PostResult::kTooManySges;
  receives_.Push(wr);
  if (attr_.state == QpState::kErr) FlushReceives();
  return PostResult::kOk;
}

QpResult UdQp::Modify(const QpAttr& attr, TimeNs) noexcept {
  if (!activated_) return QpResult::kGone;
  const QpResult result = CheckModify(device::QpType::kUd, attr_.state, attr);
  if (result != QpResult::kOk) return result;
  if ((attr.mask & kQpAttrQkey) != 0) {
    if ((attr.qkey & kPrivilegedQkey) != 0) return QpResult::kBadValue;
    attr_.qkey = attr.qkey;
  }
  if ((attr.mask & kQpAttrPkeyIndex) != 0) attr_.pkey_index = attr.pkey_index;
  if ((attr.mask & kQpAttrPort) != 0) attr_.port = attr.port;
  if ((attr.mask & kQpAttrSqPsn) != 0) attr_.sq_psn = attr.sq_psn;
  if ((attr.mask & kQpAttrState) == 0) return QpResult::kOk;
  TakeSqdNotify(attr, &attr_);
  MoveTo(attr.state);
  return QpResult::kOk;
}

// The one place where the state changes: leaves the old one and enters `next`.
void UdQp::MoveTo(QpState next) noexcept {
  const QpState previous = attr_.state;
  attr_.state = next;
  switch (next) {
    case QpState::kReset:
      core_.active.Remove(active_);
      attr_ = {};
      queue_.Reset({});
      receives_.Clear();
      next_psn_ = {};
      done_count_ = 0;
      draining_ = false;
      break;
    case QpState::kInit:
    case QpState::kRtr:
      break;
    case QpState::kRts:
      if (previous == QpState::kRtr) {
        next_psn_ = wire::Psn(attr_.sq_psn);
        queue_.Reset(next_psn_);
      }
      core_.active.Push(active_);
      break;
    case QpState::kSqd:
      if (previous != QpState::kSqd) draining_ = true;
      core_.active.Push(active_);
      break;
    case QpState::kSqe:
      FlushSends();
      break;
    case QpState::kErr:
      core_.active.Remove(active_);
      FlushSends();
      FlushReceives();
      if (srq_ != nullptr && previous != QpState::kErr) {
        core_.async->OnAsyncEvent(
            {device::AsyncEventType::kQpLastWqeReached, init_.owner_token, qpn_});
      }
      break;
  }
}

QpAttr UdQp::Query() const noexcept {
  QpAttr attr = attr_;
  attr.current_state = attr.state;
  attr.sq_draining = attr.state == QpState::kSqd && draining_;
  if (attr.state >= QpState::kRts) attr.sq_psn = next_psn_.value();
  return attr;
}

void UdQp::Complete(SoftCq& cq, device::Wc wc) noexcept {
  wc.qpn = qpn_;
  wc.qp_cookie = init_.cookie;
  Count(core_.counters.completions);
  if (wc.status != device::WcStatus::kSuccess && wc.status != device::WcStatus::kWrFlushErr) {
    Count(core_.counters.completion_errors);
  }
  cq.Push(wc);
}

}  // namespace rdmad::soft
