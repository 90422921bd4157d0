#include "client/sdk/queue_pair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/one_sge.h"
#include "client/sdk/qp_attr.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"

namespace rdmad {
namespace sdk {
namespace {

uint8_t WorkFlags(uint32_t flags) noexcept {
  uint8_t work_flags = 0;
  if ((flags & kSendSignaled) != 0) work_flags |= shm::kWorkSignaled;
  if ((flags & kSendSolicited) != 0) work_flags |= shm::kWorkSolicited;
  if ((flags & kSendFence) != 0) work_flags |= shm::kWorkFence;
  if ((flags & kSendInline) != 0) work_flags |= shm::kWorkInline;
  return work_flags;
}

QpCap CapOf(const v1::QpCap& cap) noexcept {
  return {.max_send_wr = cap.max_send_wr(),
          .max_recv_wr = cap.max_recv_wr(),
          .max_send_sge = cap.max_send_sge(),
          .max_recv_sge = cap.max_recv_sge(),
          .max_inline_bytes = cap.max_inline_bytes()};
}

absl::Status NotConnected(const char* operation, uint32_t qpn, QpState state) {
  return absl::FailedPreconditionError(
      absl::StrCat(operation, ": qpn=", qpn, " state=", static_cast<int>(state), ": not connected yet"));
}

void DestroyRemote(Session& session, uint64_t qp) {
  v1::DestroyQpRequest request;
  request.set_qp(qp);
  session.Release(rpc::kDestroyQp, request).IgnoreError();
}

// Which operations each type of QP has, as mlx5 and rxe have it.
constexpr bool TypeHas(QpType type, WrOpcode opcode) noexcept {
  switch (opcode) {
    case WrOpcode::kSend:
    case WrOpcode::kSendWithImm:
      return true;
    case WrOpcode::kRdmaWrite:
    case WrOpcode::kRdmaWriteWithImm:
    case WrOpcode::kLocalInv:
    case WrOpcode::kBindMw:
      return type != QpType::kUd;
    case WrOpcode::kSendWithInv:
    case WrOpcode::kRdmaRead:
    case WrOpcode::kCompareSwap:
    case WrOpcode::kFetchAdd:
      return type == QpType::kRc;
  }
  return false;
}

void DescribeBind(const MwBind& bind, SendRequest* request) noexcept {
  request->rkey = bind.rkey;
  request->bind_lkey = bind.mr == nullptr ? 0 : bind.mr->lkey();
  request->remote_addr = reinterpret_cast<uintptr_t>(bind.addr);
  request->compare_add = bind.length_bytes;
  request->swap = bind.access;
}

}  // namespace

QueuePairState::Queue::Queue(MappedQueue ring, const WorkQueueLimits& limits)
    : writer(reinterpret_cast<shm::WorkQueueHeader*>(ring.data), ring.slot_count, limits),
      wr_ids(std::bit_ceil(std::max(writer.depth(), 1u))) {}

QueuePairState::QueuePairState(std::shared_ptr<PdState> pd, const QpInit& init, const v1::CreateQpReply& reply,
                               MappedQueue send_ring, const std::optional<MappedQueue>& recv_ring, uint32_t cookie)
    : pd_(std::move(pd)),
      send_cq_(init.send_cq.state()),
      recv_cq_(init.recv_cq.state()),
      srq_(init.srq.state()),
      type_(init.type),
      handle_(reply.qp()),
      qpn_(reply.qpn()),
      cap_(CapOf(reply.cap())),
      doorbell_index_(reply.doorbell_index()),
      cookie_(cookie),
      context_(init.context),
      send_(send_ring, {cap_.max_send_wr, cap_.max_send_sge, cap_.max_inline_bytes}) {
  if (recv_ring.has_value()) recv_.emplace(*recv_ring, WorkQueueLimits{cap_.max_recv_wr, cap_.max_recv_sge, 0});
}

absl::StatusOr<std::shared_ptr<QueuePairState>> QueuePairState::Create(const std::shared_ptr<PdState>& pd,
                                                                       const QpInit& init, uint64_t cm_id) {
  if (!init.send_cq || !init.recv_cq) return absl::InvalidArgumentError("create_qp: a CQ is missing");
  const std::shared_ptr<Session>& session = pd->session();
  if (init.send_cq.state()->session() != session || init.recv_cq.state()->session() != session ||
      (init.srq && init.srq.state()->session() != session)) {
    return absl::InvalidArgumentError("create_qp: PD, CQs and SRQ are of different sessions");
  }
  if (!session->alive()) return session->DeadError();
  const uint32_t cookie = session->qps().Reserve();
  if (cookie == 0) return absl::ResourceExhaustedError("create_qp: this process has too many QPs");

  v1::CreateQpRequest request;
  request.set_pd(pd->handle());
  request.set_qp_type(static_cast<uint32_t>(init.type));
  request.set_send_cq(init.send_cq.state()->handle());
  request.set_recv_cq(init.recv_cq.state()->handle());
  request.mutable_cap()->set_max_send_wr(init.cap.max_send_wr);
  request.mutable_cap()->set_max_send_sge(init.cap.max_send_sge);
  if (init.srq) {
    request.set_srq(init.srq.handle());
  } else {
    request.mutable_cap()->set_max_recv_wr(init.cap.max_recv_wr);
    request.mutable_cap()->set_max_recv_sge(init.cap.max_recv_sge);
  }
  request.mutable_cap()->set_max_inline_bytes(init.cap.max_inline_bytes);
  request.set_signal_all(init.signal_all);
  request.set_cookie(cookie);
  request.set_cm_id(cm_id);
  absl::StatusOr<v1::CreateQpReply> reply = session->Call(rpc::kCreateQp, request);
  if (!reply.ok()) {
    session->qps().Remove(cookie);
    return reply.status();
  }
  // Each reply may bring an arena, so both are looked at before either fails.
  const absl::StatusOr<MappedQueue> send_ring =
      session->MapQueue(reply->send_ring(), shm::WorkQueueBytes(reply->send_ring().slot_count()));
  absl::Status status = send_ring.status();
  std::optional<MappedQueue> recv_ring;
  if (!init.srq) {
    const absl::StatusOr<MappedQueue> mapped =
        session->MapQueue(reply->recv_ring(), shm::WorkQueueBytes(reply->recv_ring().slot_count()));
    status.Update(mapped.status());
    if (mapped.ok()) recv_ring = *mapped;
  }
  if (!status.ok()) {
    DestroyRemote(*session, reply->qp());
    session->qps().Remove(cookie);
    return status;
  }
  std::shared_ptr<QueuePairState> qp(new QueuePairState(pd, init, *reply, *send_ring, recv_ring, cookie));
  if (init.srq) {
    const CompletionQueueState& cq = *qp->send_cq_;
    init.srq.state()->Attach(cq.lane(), cq.comp_vector(), reply->srq_doorbell_index());
  }
  session->qps().Set(cookie, qp.get());
  qp->send_cq_->Attach(qp.get());
  if (qp->recv_cq_ != qp->send_cq_) qp->recv_cq_->Attach(qp.get());
  return qp;
}

QueuePairState::~QueuePairState() {
  // Whatever the daemon said, the CQs must not know this object any more.
  if (!Destroy().ok()) Unlink();
}

absl::Status QueuePairState::Destroy() {
  if (destroyed_.exchange(true)) return absl::OkStatus();
  v1::DestroyQpRequest request;
  request.set_qp(handle_);
  if (absl::Status status = session()->Release(rpc::kDestroyQp, request); !status.ok()) {
    destroyed_.store(false);
    return status;
  }
  Unlink();
  return absl::OkStatus();
}

void QueuePairState::Unlink() noexcept {
  // What nobody will poll gives its places back, the CQ's and the SRQ's. As long as it is there, the CQ must find us.
  PurgeCqs();
  session()->qps().Remove(cookie_);
  // Whoever polls now has found the QP already: wait for that.
  send_cq_->Detach(this);
  recv_cq_->Detach(this);
  if (srq_ != nullptr) srq_->Detach();
}

void QueuePairState::PurgeCqs() noexcept {
  send_cq_->Purge(cookie_, srq_.get());
  if (recv_cq_ != send_cq_) recv_cq_->Purge(cookie_, srq_.get());
}

bool QueuePairState::Allows(const SendWr& wr) const noexcept {
  if (!TypeHas(type_, wr.opcode)) return false;
  if (type_ == QpType::kUd && (wr.ah == nullptr || !*wr.ah)) return false;
  if (wr.opcode != WrOpcode::kBindMw) return true;
  return wr.bind != nullptr && wr.sges.empty() && (wr.bind->mr != nullptr || wr.bind->length_bytes == 0);
}

int QueuePairState::Encode(const SendWr& wr) noexcept {
  SgeArray sges;
  if (!Allows(wr) || !ConvertSges(wr.sges, &sges)) return EINVAL;
  SendRequest request;
  request.wr_id = wr.wr_id;
  request.opcode = static_cast<shm::WorkOpcode>(wr.opcode);
  request.flags = WorkFlags(wr.flags);
  request.sges = {sges.data(), wr.sges.size()};
  request.imm_be = wr.imm_be;
  request.remote_addr = wr.remote_addr;
  request.rkey = wr.rkey;
  request.compare_add = wr.compare_add;
  request.swap = wr.swap;
  if (wr.opcode == WrOpcode::kBindMw) DescribeBind(*wr.bind, &request);
  if (type_ == QpType::kUd) {
    request.ah_handle = wr.ah->slot_handle();
    request.remote_qpn = wr.remote_qpn;
    request.remote_qkey = wr.remote_qkey;
  }
  return send_.writer.PostSend(request);
}

absl::Status QueuePairState::SendError(int error_number, const SendWr& wr) const {
  if (error_number == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat("post_send: qpn=", qpn_, ": queue full: depth=",
                                                     send_.writer.depth(), "; poll completions first"));
  }
  uint64_t bytes = 0;
  for (const Sge& sge : wr.sges) bytes += sge.length_bytes;
  if (!Allows(wr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("post_send: qpn=", qpn_, " qp_type=", static_cast<int>(type_), " opcode=",
                     static_cast<int>(wr.opcode), " ah=", wr.ah != nullptr, " bind=", wr.bind != nullptr,
                     ": this type of QP does not have the operation, or the WR lacks what it needs"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "post_send: qpn=", qpn_, " opcode=", static_cast<int>(wr.opcode), " sges=", wr.sges.size(), " max_send_sge=",
      cap_.max_send_sge, " bytes=", bytes, " inline=", (wr.flags & kSendInline) != 0, " max_inline_bytes=",
      cap_.max_inline_bytes));
}

absl::Status QueuePairState::PostSend(std::span<const SendWr> wrs, size_t* posted) noexcept {
  size_t count = 0;
  int error_number = 0;
  {
    const std::lock_guard lock(send_.mutex);
    if (posted != nullptr) *posted = 0;
    if (!session()->alive()) return session()->DeadError();
    if (destroyed_.load(std::memory_order_relaxed)) return absl::FailedPreconditionError("post_send: QP was destroyed");
    if (const QpState state = this->state(); state < QpState::kRts) return NotConnected("post_send", qpn_, state);
    for (const SendWr& wr : wrs) {
      error_number = Encode(wr);
      if (error_number != 0) break;
      send_.Remember(wr.wr_id);
      ++count;
    }
    if (count != 0) send_.writer.Publish();
  }
  if (count != 0) send_cq_->lane().Ring(doorbell_index_);
  if (posted != nullptr) *posted = count;
  return error_number == 0 ? absl::OkStatus() : SendError(error_number, wrs[count]);
}

absl::Status QueuePairState::PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept {
  size_t count = 0;
  int error_number = 0;
  if (!recv_.has_value()) {
    if (posted != nullptr) *posted = 0;
    return absl::InvalidArgumentError(absl::StrCat("post_recv: qpn=", qpn_, ": it has an SRQ; post there"));
  }
  {
    const std::lock_guard lock(recv_->mutex);
    if (posted != nullptr) *posted = 0;
    if (!session()->alive()) return session()->DeadError();
    if (destroyed_.load(std::memory_order_relaxed)) return absl::FailedPreconditionError("post_recv: QP was destroyed");
    if (const QpState state = this->state(); state == QpState::kReset) return NotConnected("post_recv", qpn_, state);
    for (const RecvWr& wr : wrs) {
      SgeArray sges;
      error_number = ConvertSges(wr.sges, &sges) ? recv_->writer.PostRecv(wr.wr_id, {sges.data(), wr.sges.size()}) : EINVAL;
      if (error_number != 0) break;
      recv_->Remember(wr.wr_id);
      ++count;
    }
    if (count != 0) recv_->writer.Publish();
  }
  if (count != 0) send_cq_->lane().Ring(doorbell_index_);
  if (posted != nullptr) *posted = count;
  if (error_number == 0) return absl::OkStatus();
  if (error_number == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat("post_recv: qpn=", qpn_, ": queue full: depth=", recv_->writer.depth()));
  }
  return absl::InvalidArgumentError(absl::StrCat("post_recv: qpn=", qpn_, " sges=", wrs[count].sges.size(),
                                                 " max_recv_sge=", cap_.max_recv_sge));
}

size_t QueuePairState::FlushInto(const CompletionQueueState* cq, std::span<Wc> out) noexcept {
  size_t count = 0;
  if (cq == send_cq_.get()) count += Flush(send_, true, out);
  if (cq != recv_cq_.get()) return count;
  out = out.subspan(count);
  count += srq_ != nullptr ? srq_->FlushInto(qpn_, out) : Flush(*recv_, false, out);
  return count;
}

size_t QueuePairState::Flush(Queue& queue, bool is_send, std::span<Wc> out) noexcept {
  const std::lock_guard lock(queue.mutex);
  size_t count = 0;
  for (; count < out.size() && queue.writer.outstanding() != 0; ++count) {
    const uint32_t index = queue.posted - queue.writer.outstanding();
    out[count] = Wc{.wr_id = queue.wr_ids[index & (queue.wr_ids.size() - 1)],
                    .status = WcStatus::kWrFlushErr,
                    .opcode = is_send ? WcOpcode::kSend : WcOpcode::kRecv,
                    .flags = 0,
                    .byte_len = 0,
                    .imm_be = 0,
                    .qpn = qpn_,
                    .src_qpn = 0,
                    .vendor_err = 0,
                    .slid = 0,
                    .service_level = 0,
                    .dlid_path_bits = 0};
    queue.writer.RetireOne();
  }
  return count;
}

absl::Status QueuePairState::Modify(const QpAttr& attr) {
  v1::ModifyQpRequest request;
  request.set_qp(handle_);
  *request.mutable_attr() = ToProto(attr);
  request.set_attr_mask(attr.mask);
  SDK_RETURN_IF_ERROR(session()->Call(rpc::kModifyQp, request).status());
  if ((attr.mask & kQpAttrState) == 0) return absl::OkStatus();
  if (attr.state == QpState::kReset) {
    // The engine has forgotten all WRs; so do we, together with what they left in the CQs. (CQ locks come before those
    // of queues, as in Poll.)
    PurgeCqs();
    send_.Reset();
    if (recv_.has_value()) recv_->Reset();
  }
  set_state(attr.state);
  return absl::OkStatus();
}

absl::Status QueuePairState::AttachMulticast(const std::array<uint8_t, 16>& group) {
  v1::AttachMulticastRequest request;
  request.set_qp(handle_);
  request.set_gid(group.data(), group.size());
  return session()->Call(rpc::kAttachMulticast, request).status();
}

absl::Status QueuePairState::DetachMulticast(const std::array<uint8_t, 16>& group) {
  v1::DetachMulticastRequest request;
  request.set_qp(handle_);
  request.set_gid(group.data(), group.size());
  return session()->Call(rpc::kDetachMulticast, request).status();
}

absl::StatusOr<QpAttr> QueuePairState::Query() {
  v1::QueryQpRequest request;
  request.set_qp(handle_);
  SDK_ASSIGN_OR_RETURN(const v1::QueryQpReply reply, session()->Call(rpc::kQueryQp, request));
  return FromProto(reply.attr());
}

}  // namespace sdk

absl::StatusOr<QueuePair> QueuePair::Create(const ProtectionDomain& pd, const QpInit& init) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::QueuePairState> state, sdk::QueuePairState::Create(pd.state(), init));
  return QueuePair(std::move(state));
}

absl::Status QueuePair::Modify(const QpAttr& attr) { return state_->Modify(attr); }
absl::StatusOr<QpAttr> QueuePair::Query() const { return state_->Query(); }
absl::Status QueuePair::AttachMulticast(const std::array<uint8_t, 16>& group) { return state_->AttachMulticast(group); }
absl::Status QueuePair::DetachMulticast(const std::array<uint8_t, 16>& group) { return state_->DetachMulticast(group); }
uint32_t QueuePair::qpn() const noexcept { return state_->qpn(); }
QpType QueuePair::type() const noexcept { return state_->type(); }
const QpCap& QueuePair::cap() const noexcept { return state_->cap(); }
uint64_t QueuePair::handle() const noexcept { return state_->handle(); }
void* QueuePair::context() const noexcept { return state_->context(); }
CompletionQueue QueuePair::send_cq() const noexcept { return CompletionQueue(state_->send_cq()); }
CompletionQueue QueuePair::recv_cq() const noexcept { return CompletionQueue(state_->recv_cq()); }
SharedReceiveQueue QueuePair::srq() const noexcept { return SharedReceiveQueue(state_->srq()); }
absl::Status QueuePair::Destroy() { return state_->Destroy(); }

}  // namespace rdmad
