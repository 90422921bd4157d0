#include "daemon/device/soft/soft_qp.h"

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/qp_attr_rules.h"

namespace rdmad::soft {

using device::PostResult;
using device::QpAttr;
using device::QpResult;
using device::QpState;
using enum device::QpAttrMask;

namespace {

// Never used again in this process, unlike QP numbers: a window outlives its QP.
uint64_t NextKeyScope() noexcept {
  static std::atomic<uint64_t> last{0};
  return kQpScopeBit |
         (last.fetch_add(1, std::memory_order_relaxed) + 1);  // the number alone matters
}

}  // namespace

absl::Status CheckQpInit(const SoftQpInit& init) {
  const struct {
    const char* name;
    uint32_t value;
    uint32_t limit;
  } limits[] = {{"max_send_wr", init.cap.max_send_wr, kMaxQueueDepth},
                {"max_recv_wr", init.cap.max_recv_wr, kMaxQueueDepth},
                {"max_send_sge", init.cap.max_send_sge, kMaxSge},
                {"max_recv_sge", init.cap.max_recv_sge, kMaxSge},
                {"max_inline_bytes", init.cap.max_inline_bytes, kMaxInlineBytes}};
  for (const auto& limit : limits) {
    if (limit.value > limit.limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("create_qp: ", limit.name, "=", limit.value, " device_max=", limit.limit));
    }
  }
  if (init.qpn <= wire::kGsiQpn.value() || init.qpn >= wire::kMulticastQpn.value()) {
    return absl::InvalidArgumentError(absl::StrCat("create_qp: qpn=", init.qpn));
  }
  if (init.pd == nullptr || init.init.send_cq == nullptr || init.init.recv_cq == nullptr ||
      !init.source) {
    return absl::InvalidArgumentError("create_qp: needs a PD, two CQs and an address lookup");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SoftQp>> SoftQp::Create(Transport& transport,
                                                       const SoftQpInit& asked) {
  SoftQpInit init = asked;
  if (init.init.srq != nullptr) init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
  if (init.init.type != device::QpType::kRc && init.init.type != device::QpType::kUc) {
    return absl::UnimplementedError(absl::StrCat(
        "create_qp: type=", static_cast<int>(init.init.type), " supported=2 (RC), 3 (UC)"));
  }
  RD_RETURN_IF_ERROR(CheckQpInit(init));
  return std::unique_ptr<SoftQp>(new SoftQp(transport.core(), init));
}

SoftQp::SoftQp(TransportCore& core, const SoftQpInit& init)
    : TransportQp(this),
      source_(init.source),
      context_{.self = *this,
               .core = core,
               .qpn = init.qpn,
               .pd_id = init.pd->id(),
               .init = init.init,
               .cap = init.cap,
               .send_cq = static_cast<SoftCq*>(init.init.send_cq),
               .recv_cq = static_cast<SoftCq*>(init.init.recv_cq),
               .srq = static_cast<SoftSrq*>(init.init.srq),
               .key_scope = NextKeyScope(),
               .attr = {},
               .flow = {},
               .mtu_bytes = 0,
               .timer = Timer(this),
               .active = ActiveNode(this),
               .srq_waiter = ActiveNode(this)},
      cnp_(context_),
      requester_(context_),
      responder_(context_) {}

SoftQp::~SoftQp() {
  RD_CHECK(!activated_, "the engine lets go of a QP before control frees it");
}

void SoftQp::Activate(TimeNs) noexcept {
  context_.core.qps.Insert(context_.qpn, this);
  activated_ = true;
}

void SoftQp::Deactivate(TimeNs) noexcept {
  MoveTo(QpState::kReset);
  context_.core.qps.Remove(context_.qpn);
  activated_ = false;
}

PostResult SoftQp::PostSend(const device::SendWr& wr, TimeNs) noexcept {
  return requester_.Post(wr);
}

PostResult SoftQp::PostRecv(const device::RecvWr& wr, TimeNs) noexcept {
  const PostResult result = responder_.Post(wr);
  if (result == PostResult::kOk) static_cast<void>(OnReceivePosted());
  return result;
}

bool SoftQp::OnReceivePosted() noexcept {
  if (!responder_.TakeLocalSenderWaits()) return false;
  SoftQp* const sender = context_.core.qps.FindConnected(context_.attr.dest_qpn);
  return sender != nullptr && sender->requester_.local().FindPeer() == this &&
         sender->requester_.CutRnrWaitShort();
}

QpResult SoftQp::Modify(const QpAttr& attr, TimeNs) noexcept {
  if (!activated_) return QpResult::kGone;
  const QpResult result = CheckModify(context_.init.type, context_.state(), attr);
  if (result != QpResult::kOk) return result;
  if ((attr.mask & kQpAttrAv) != 0) {
    SourceAddress source;
    if (!attr.av.is_global) return QpResult::kBadValue;
    if (!source_(attr.av.sgid_index, &source)) return QpResult::kBadValue;
    const device::Mtu mtu =
        (attr.mask & kQpAttrPathMtu) != 0 ? attr.path_mtu : context_.attr.path_mtu;
    // The route may carry less, which is the CM's to ask: here, as on HCAs, the caller knows.
    if (mtu > source.max_mtu || attr.av.dest.is_v4() != source.address.is_v4()) {
      // The index that it had stays in use.
      if (context_.mtu_bytes != 0) source_(context_.attr.av.sgid_index, &source);
      return QpResult::kBadValue;
    }
    // A GID has no scope: a link-local peer is on the link of the address that we send from.
    context_.flow = {.local = source.address,
                     .remote = attr.av.dest.WithScope(source.address.scope_id()),
                     .traffic_class = static_cast<uint8_t>(attr.av.traffic_class & ~kEcnMask),
                     .ecn = MarkableBits(),
                     .hop_limit = attr.av.hop_limit,
                     .flow_label = attr.av.flow_label & 0xfffff};
    requester_.ForgetPeer();
  }
  Apply(attr);
  if ((attr.mask & kQpAttrState) == 0) return QpResult::kOk;
  MoveTo(attr.state);
  return QpResult::kOk;
}

// Takes over the attributes that `attr.mask` names, but for the state.
void SoftQp::Apply(const QpAttr& attr) noexcept {
  const auto named = [&attr](uint32_t bit) { return (attr.mask & bit) != 0; };
  QpAttr& own = context_.attr;
  if (named(kQpAttrAccessFlags)) own.access_flags = attr.access_flags;
  if (named(kQpAttrPkeyIndex)) own.pkey_index = attr.pkey_index;
  if (named(kQpAttrPort)) own.port = attr.port;
  if (named(kQpAttrQkey)) own.qkey = attr.qkey;
  if (named(kQpAttrAv)) own.av = attr.av;
  if (named(kQpAttrPathMtu)) own.path_mtu = attr.path_mtu;
  if (named(kQpAttrTimeout)) own.timeout = attr.timeout;
  if (named(kQpAttrRetryCnt)) own.retry_count = attr.retry_count;
  if (named(kQpAttrRnrRetry)) own.rnr_retry = attr.rnr_retry;
  if (named(kQpAttrRqPsn)) own.rq_psn = attr.rq_psn;
  if (named(kQpAttrMaxQpRdAtomic)) own.max_rd_atomic = attr.max_rd_atomic;
  if (named(kQpAttrMinRnrTimer)) own.min_rnr_timer = attr.min_rnr_timer;
  if (named(kQpAttrSqPsn)) own.sq_psn = attr.sq_psn;
  if (named(kQpAttrMaxDestRdAtomic)) own.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if (named(kQpAttrDestQpn)) own.dest_qpn = attr.dest_qpn;
  TakeSqdNotify(attr, &own);
}

// The one place where the state changes: leaves the old one and enters `next`.
void SoftQp::MoveTo(QpState next) noexcept {
  const QpState previous = context_.attr.state;
  context_.attr.state = next;
  switch (next) {
    case QpState::kReset:
      context_.core.active.Remove(context_.active);
      context_.attr = {};
      context_.flow = {};
      context_.mtu_bytes = 0;
      cnp_.Reset();
      requester_.Reset();
      responder_.Reset();
      break;
    case QpState::kInit:
      break;
    case QpState::kRtr:
      context_.mtu_bytes = device::MtuBytes(context_.attr.path_mtu);
      responder_.Start();
      break;
    case QpState::kRts:
      if (previous == QpState::kRtr) requester_.Start();
      if (previous == QpState::kSqe) requester_.Resume();
      context_.Wake();
      break;
    case QpState::kSqd:
      if (previous != QpState::kSqd) requester_.StartDrain();
      context_.Wake();
      break;
    case QpState::kSqe:
      requester_.Flush();
      break;
    case QpState::kErr:
      context_.core.active.Remove(context_.active);
      requester_.Flush();
      responder_.Flush();
      // Nothing that it took from there is outstanding any more.
      if (context_.srq != nullptr && previous != QpState::kErr) {
        context_.Raise(device::AsyncEventType::kQpLastWqeReached);
      }
      break;
  }
}

void SoftQp::EnterError(TimeNs) noexcept {
  if (context_.state() == QpState::kErr || context_.state() == QpState::kReset) return;
  Count(context_.core.counters.qp_errors);
  MoveTo(QpState::kErr);
}

void SoftQp::EnterSendError(TimeNs now) noexcept {
  if (context_.reliable()) return EnterError(now);
  if (context_.state() != QpState::kRts && context_.state() != QpState::kSqd) return;
  Count(context_.core.counters.qp_errors);
  MoveTo(QpState::kSqe);
}

QpAttr SoftQp::Query() const noexcept {
  QpAttr attr = context_.attr;
  attr.current_state = attr.state;
  attr.sq_draining = attr.state == QpState::kSqd && requester_.draining();
  const bool receives = attr.state >= QpState::kRtr;
  const bool sends = attr.state >= QpState::kRts;
  if (receives) attr.rq_psn = responder_.expected_psn().value();
  if (sends) attr.sq_psn = requester_.next_psn().value();
  return attr;
}

void SoftQp::OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs now) noexcept {
  TransportCounters& counters = context_.core.counters;
  if (!ReceivesIn(context_.state())) {
    Count(counters.drop_bad_state);
    return;
  }
  const wire::OpcodeInfo& info = packet.info();
  const wire::Transport own = context_.reliable() ? wire::Transport::kRc : wire::Transport::kUc;
  if (info.transport != own && info.transport != wire::Transport::kCnp) {
    Count(counters.drop_wrong_transport);
    return;
  }
  if (flow.remote != context_.flow.remote || flow.local != context_.flow.local) {
    Count(counters.drop_wrong_address);
    return;
  }
  if (!wire::PKeysMatch(packet.pkey, wire::kDefaultPKey)) {
    Count(counters.drop_bad_pkey);
    return;
  }
  const bool is_cnp = info.operation == wire::Operation::kCongestion;
  if (is_cnp || packet.becn) NoteNotification();
  if (is_cnp) return;
  if (flow.ecn == kEcnCe) NoteMark(packet, now);
  if (info.is_response()) {
    requester_.OnResponse(packet, now);
    requester_.CheckDrained();
  } else if (!context_.reliable()) {
    if (responder_.OnUnreliableRequest(packet)) context_.Wake();
  } else {
    responder_.OnRequest(packet);
    context_.Wake();
  }
}

// The peer tells of marks on what we have sent, by a CNP or by BECN in another packet.
void SoftQp::NoteNotification() noexcept {
  const bool slower = context_.core.config.ecn && requester_.OnCongestion();
  Count(slower ? context_.core.counters.cnp_handled : context_.core.counters.cnp_ignored);
}

// A router has marked a packet of the peer's.
void SoftQp::NoteMark(const wire::PacketView& packet, TimeNs now) noexcept {
  switch (packet.info().operation) {
    case wire::Operation::kSend:
    case wire::Operation::kWrite:
    case wire::Operation::kReadRequest:
    case wire::Operation::kAtomicRequest:
      cnp_.OnMarked(now);
      break;
    case wire::Operation::kReadResponse:
      // How much of these is under way is this side's decision, and with some peers theirs.
      if (context_.core.config.ecn) (void)requester_.OnCongestion();
      cnp_.OnMarked(now);
      break;
    case wire::Operation::kAck:
    case wire::Operation::kAtomicAck:
    case wire::Operation::kCongestion:
      break;  // too small to be what fills the queue
  }
}

RunResult SoftQp::Run(uint32_t budget_bytes, TimeNs now) noexcept {
  RunResult result;
  if (!cnp_.Run(&result)) {
    result.more = true;
    return result;
  }
  result.Add(responder_.Run(budget_bytes, now));
  // The requester has its share even while long READs are answered.
  result.Add(requester_.Run(budget_bytes, now));
  result.more &= context_.state() != QpState::kErr;
  return result;
}

}  // namespace rdmad::soft
