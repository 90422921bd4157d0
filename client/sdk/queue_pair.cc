#include "client/sdk/queue_pair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/qp_attr.h"
#include "client/sdk/status_errno.h"
#include "client/sdk/status_macros.h"

namespace rdmad {
namespace sdk {
namespace {

using SgeArray = std::array<shm::WorkSge, shm::kMaxSge>;

// The same fields in the layout of the ring; false if there are more than any queue takes.
bool Convert(std::span<const Sge> sges, SgeArray* out) noexcept {
  if (sges.size() > out->size()) return false;
  for (size_t i = 0; i < sges.size(); ++i) {
    (*out)[i] = {.addr = sges[i].addr, .length_bytes = sges[i].length_bytes, .lkey = sges[i].lkey};
  }
  return true;
}

uint8_t WorkFlags(uint32_t flags) noexcept {
  uint8_t work_flags = 0;
  if ((flags & kSendSignaled) != 0) work_flags |= shm::kWorkSignaled;
  if ((flags & kSendSolicited) != 0) work_flags |= shm::kWorkSolicited;
  if ((flags & kSendFence) != 0) work_flags |= shm::kWorkFence;
  if ((flags & kSendInline) != 0) work_flags |= shm::kWorkInline;
  return work_flags;
}

int Encode(WorkQueueWriter& writer, const SendWr& wr) noexcept {
  if (wr.opcode > WrOpcode::kFetchAdd) return EINVAL;
  SgeArray sges;
  if (!Convert(wr.sges, &sges)) return EINVAL;
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
  return writer.PostSend(request);
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

}  // namespace

QueuePairState::Queue::Queue(MappedQueue ring, const WorkQueueLimits& limits)
    : writer(reinterpret_cast<shm::WorkQueueHeader*>(ring.data), ring.slot_count, limits),
      wr_ids(std::bit_ceil(std::max(writer.depth(), 1u))) {}

QueuePairState::QueuePairState(std::shared_ptr<PdState> pd, const QpInit& init, const v1::CreateQpReply& reply,
                               MappedQueue send_ring, MappedQueue recv_ring, uint32_t cookie)
    : pd_(std::move(pd)),
      send_cq_(init.send_cq.state()),
      recv_cq_(init.recv_cq.state()),
      handle_(reply.qp()),
      qpn_(reply.qpn()),
      cap_(CapOf(reply.cap())),
      doorbell_index_(reply.doorbell_index()),
      cookie_(cookie),
      context_(init.context),
      send_(send_ring, {cap_.max_send_wr, cap_.max_send_sge, cap_.max_inline_bytes}),
      recv_(recv_ring, {cap_.max_recv_wr, cap_.max_recv_sge, 0}) {}

absl::StatusOr<std::shared_ptr<QueuePairState>> QueuePairState::Create(const std::shared_ptr<PdState>& pd,
                                                                       const QpInit& init) {
  if (init.type != QpType::kRc) {
    return absl::UnimplementedError(absl::StrCat("create_qp: type=", static_cast<int>(init.type),
                                                 ": only RC (2) is supported by this version"));
  }
  if (!init.send_cq || !init.recv_cq) return absl::InvalidArgumentError("create_qp: a CQ is missing");
  const std::shared_ptr<Session>& session = pd->session();
  if (init.send_cq.state()->session() != session || init.recv_cq.state()->session() != session) {
    return absl::InvalidArgumentError("create_qp: PD and CQs are of different sessions");
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
  request.mutable_cap()->set_max_recv_wr(init.cap.max_recv_wr);
  request.mutable_cap()->set_max_send_sge(init.cap.max_send_sge);
  request.mutable_cap()->set_max_recv_sge(init.cap.max_recv_sge);
  request.mutable_cap()->set_max_inline_bytes(init.cap.max_inline_bytes);
  request.set_signal_all(init.signal_all);
  request.set_cookie(cookie);
  absl::StatusOr<v1::CreateQpReply> reply = session->Call(rpc::kCreateQp, request);
  if (!reply.ok()) {
    session->qps().Remove(cookie);
    return reply.status();
  }
  // Each reply may bring an arena, so both are looked at before either fails.
  const absl::StatusOr<MappedQueue> send_ring =
      session->MapQueue(reply->send_ring(), shm::WorkQueueBytes(reply->send_ring().slot_count()));
  const absl::StatusOr<MappedQueue> recv_ring =
      session->MapQueue(reply->recv_ring(), shm::WorkQueueBytes(reply->recv_ring().slot_count()));
  if (!send_ring.ok() || !recv_ring.ok()) {
    DestroyRemote(*session, reply->qp());
    session->qps().Remove(cookie);
    return send_ring.ok() ? recv_ring.status() : send_ring.status();
  }
  std::shared_ptr<QueuePairState> qp(new QueuePairState(pd, init, *reply, *send_ring, *recv_ring, cookie));
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
  session()->qps().Remove(cookie_);
  // Whoever polls now has found the QP already: wait for that.
  send_cq_->Detach(this);
  recv_cq_->Detach(this);
}

absl::Status QueuePairState::SendError(int error_number, const SendWr& wr) const {
  if (error_number == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat("post_send: qpn=", qpn_, ": queue full: depth=",
                                                     send_.writer.depth(), "; poll completions first"));
  }
  uint64_t bytes = 0;
  for (const Sge& sge : wr.sges) bytes += sge.length_bytes;
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
      error_number = Encode(send_.writer, wr);
      if (error_number != 0) break;
      send_.Remember(wr.wr_id);
      ++count;
    }
    if (count != 0) send_.writer.Publish();
  }
  if (count != 0) session()->Ring(doorbell_index_);
  if (posted != nullptr) *posted = count;
  return error_number == 0 ? absl::OkStatus() : SendError(error_number, wrs[count]);
}

absl::Status QueuePairState::PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept {
  size_t count = 0;
  int error_number = 0;
  {
    const std::lock_guard lock(recv_.mutex);
    if (posted != nullptr) *posted = 0;
    if (!session()->alive()) return session()->DeadError();
    if (destroyed_.load(std::memory_order_relaxed)) return absl::FailedPreconditionError("post_recv: QP was destroyed");
    if (const QpState state = this->state(); state == QpState::kReset) return NotConnected("post_recv", qpn_, state);
    for (const RecvWr& wr : wrs) {
      SgeArray sges;
      error_number = Convert(wr.sges, &sges) ? recv_.writer.PostRecv(wr.wr_id, {sges.data(), wr.sges.size()}) : EINVAL;
      if (error_number != 0) break;
      recv_.Remember(wr.wr_id);
      ++count;
    }
    if (count != 0) recv_.writer.Publish();
  }
  if (count != 0) session()->Ring(doorbell_index_);
  if (posted != nullptr) *posted = count;
  if (error_number == 0) return absl::OkStatus();
  if (error_number == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat("post_recv: qpn=", qpn_, ": queue full: depth=", recv_.writer.depth()));
  }
  return absl::InvalidArgumentError(absl::StrCat("post_recv: qpn=", qpn_, " sges=", wrs[count].sges.size(),
                                                 " max_recv_sge=", cap_.max_recv_sge));
}

size_t QueuePairState::FlushInto(const CompletionQueueState* cq, std::span<Wc> out) noexcept {
  size_t count = 0;
  if (cq == send_cq_.get()) count += Flush(send_, true, out);
  if (cq == recv_cq_.get()) count += Flush(recv_, false, out.subspan(count));
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
                    .vendor_err = 0};
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
    send_cq_->Purge(qpn_);
    if (recv_cq_ != send_cq_) recv_cq_->Purge(qpn_);
    const std::scoped_lock lock(send_.mutex, recv_.mutex);
    send_.writer.Reset();
    recv_.writer.Reset();
    send_.posted = 0;
    recv_.posted = 0;
  }
  set_state(attr.state);
  return absl::OkStatus();
}

absl::StatusOr<QpAttr> QueuePairState::Query() {
  v1::QueryQpRequest request;
  request.set_qp(handle_);
  SDK_ASSIGN_OR_RETURN(const v1::QueryQpReply reply, session()->Call(rpc::kQueryQp, request));
  return FromProto(reply.attr());
}

}  // namespace sdk

namespace {

// One SGE, or none for an empty message. False: longer than any message may be.
struct OneSge {
  OneSge(const void* addr, size_t length_bytes, const MemoryRegion* mr) noexcept
      : sge{reinterpret_cast<uintptr_t>(addr), static_cast<uint32_t>(length_bytes), mr == nullptr ? 0 : mr->lkey()},
        count(length_bytes == 0 ? 0 : 1),
        fits(length_bytes <= UINT32_MAX) {}
  std::span<const Sge> span() const noexcept { return {&sge, count}; }
  Sge sge;
  size_t count;
  bool fits;
};

absl::Status TooLong(const char* operation, size_t length_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(operation, ": length_bytes=", length_bytes, " limit=", UINT32_MAX));
}

}  // namespace

absl::StatusOr<QueuePair> QueuePair::Create(const ProtectionDomain& pd, const QpInit& init) {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::QueuePairState> state, sdk::QueuePairState::Create(pd.state(), init));
  return QueuePair(std::move(state));
}

absl::Status QueuePair::PostSend(std::span<const SendWr> wrs, size_t* posted) noexcept {
  return state_->PostSend(wrs, posted);
}

absl::Status QueuePair::PostRecv(std::span<const RecvWr> wrs, size_t* posted) noexcept {
  return state_->PostRecv(wrs, posted);
}

absl::Status QueuePair::PostSend(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr,
                                 uint32_t flags) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostSendv(wr_id, one.span(), flags) : TooLong("post_send", length_bytes);
}

absl::Status QueuePair::PostSendv(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags) noexcept {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.flags = flags;
  wr.sges = sges;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostRecv(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostRecvv(wr_id, one.span()) : TooLong("post_recv", length_bytes);
}

absl::Status QueuePair::PostRecvv(uint64_t wr_id, std::span<const Sge> sges) noexcept {
  const RecvWr wr{wr_id, sges};
  return state_->PostRecv({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostRead(uint64_t wr_id, void* addr, size_t length_bytes, const MemoryRegion* mr,
                                 uint32_t flags, uint64_t remote_addr, uint32_t rkey) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostReadv(wr_id, one.span(), flags, remote_addr, rkey) : TooLong("post_read", length_bytes);
}

absl::Status QueuePair::PostReadv(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                                  uint32_t rkey) noexcept {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.opcode = WrOpcode::kRdmaRead;
  wr.flags = flags;
  wr.sges = sges;
  wr.remote_addr = remote_addr;
  wr.rkey = rkey;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::PostWrite(uint64_t wr_id, const void* addr, size_t length_bytes, const MemoryRegion* mr,
                                  uint32_t flags, uint64_t remote_addr, uint32_t rkey) noexcept {
  const OneSge one(addr, length_bytes, mr);
  return one.fits ? PostWritev(wr_id, one.span(), flags, remote_addr, rkey) : TooLong("post_write", length_bytes);
}

absl::Status QueuePair::PostWritev(uint64_t wr_id, std::span<const Sge> sges, uint32_t flags, uint64_t remote_addr,
                                   uint32_t rkey) noexcept {
  SendWr wr;
  wr.wr_id = wr_id;
  wr.opcode = WrOpcode::kRdmaWrite;
  wr.flags = flags;
  wr.sges = sges;
  wr.remote_addr = remote_addr;
  wr.rkey = rkey;
  return state_->PostSend({&wr, 1}, nullptr);
}

absl::Status QueuePair::Modify(const QpAttr& attr) { return state_->Modify(attr); }
absl::StatusOr<QpAttr> QueuePair::Query() const { return state_->Query(); }
uint32_t QueuePair::qpn() const noexcept { return state_->qpn(); }
const QpCap& QueuePair::cap() const noexcept { return state_->cap(); }
uint64_t QueuePair::handle() const noexcept { return state_->handle(); }
void* QueuePair::context() const noexcept { return state_->context(); }
CompletionQueue QueuePair::send_cq() const noexcept { return CompletionQueue(state_->send_cq()); }
CompletionQueue QueuePair::recv_cq() const noexcept { return CompletionQueue(state_->recv_cq()); }
absl::Status QueuePair::Destroy() { return state_->Destroy(); }

}  // namespace rdmad
