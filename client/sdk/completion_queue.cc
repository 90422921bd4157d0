#include "client/sdk/completion_queue.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/pipe_status.h"
#include "client/sdk/queue_pair.h"
#include "client/sdk/shared_receive_queue.h"
#include "client/sdk/spin.h"
#include "client/sdk/status_macros.h"
#include "proto/shm/event.h"

namespace rdmad {
namespace sdk {
namespace {

constexpr size_t kPollChunk = 16;

uint32_t WcFlagsOf(const shm::Cqe& cqe) noexcept {
  uint32_t flags = 0;
  if ((cqe.flags & shm::kCqeWithImm) != 0) flags |= kWcWithImm;
  if ((cqe.flags & shm::kCqeWithInv) != 0) flags |= kWcWithInv;
  if ((cqe.flags & shm::kCqeGrh) != 0) flags |= kWcGrh;
  return flags;
}

}  // namespace

CompletionChannelState::CompletionChannelState(std::shared_ptr<Session> session, uint64_t handle, UniqueFd fd) noexcept
    : session_(std::move(session)), handle_(handle), pipe_(std::move(fd)) {}

absl::StatusOr<std::shared_ptr<CompletionChannelState>> CompletionChannelState::Create(
    const std::shared_ptr<Session>& session) {
  SDK_ASSIGN_OR_RETURN(const v1::CreateCompletionChannelReply reply,
                       session->Call(rpc::kCreateCompletionChannel, {}));
  absl::StatusOr<UniqueFd> fd =
      session->TakeDescriptor(reply.descriptor_tag(), v1::DESCRIPTOR_KIND_COMPLETION_CHANNEL);
  if (!fd.ok()) {
    v1::DestroyCompletionChannelRequest request;
    request.set_channel(reply.channel());
    session->Release(rpc::kDestroyCompletionChannel, request).IgnoreError();
    return fd.status();
  }
  return std::shared_ptr<CompletionChannelState>(
      new CompletionChannelState(session, reply.channel(), std::move(fd).value()));
}

CompletionChannelState::~CompletionChannelState() {
  v1::DestroyCompletionChannelRequest request;
  request.set_channel(handle_);
  session_->Release(rpc::kDestroyCompletionChannel, request).IgnoreError();
}

void CompletionChannelState::AddCq(const std::shared_ptr<CompletionQueueState>& cq) {
  const std::lock_guard lock(mutex_);
  cqs_.insert_or_assign(cq->handle(), cq);
}

void CompletionChannelState::RemoveCq(uint64_t cq_handle) noexcept {
  const std::lock_guard lock(mutex_);
  cqs_.erase(cq_handle);
}

std::shared_ptr<CompletionQueueState> CompletionChannelState::TakeArmed() {
  std::vector<std::shared_ptr<CompletionQueueState>> passed;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, weak] : cqs_) {
    std::shared_ptr<CompletionQueueState> cq = weak.lock();
    if (cq != nullptr && cq->Disarm()) {
      cq->CountEvent();
      return cq;
    }
    passed.push_back(std::move(cq));
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<CompletionQueueState>> CompletionChannelState::GetEvent(Deadline deadline) {
  while (true) {
    shm::CompletionEvent event{};
    const PipeResult result = pipe_.Read(&event, sizeof(event), deadline);
    if (result == PipeResult::kHangup) {
      session_->MarkDead();
      if (std::shared_ptr<CompletionQueueState> cq = TakeArmed(); cq != nullptr) return cq;
      return session_->DeadError();
    }
    if (result != PipeResult::kRecord) return PipeStatus(result, "get_cq_event");
    std::shared_ptr<CompletionQueueState> cq;
    const std::lock_guard lock(mutex_);
    const auto found = cqs_.find(event.cq_handle);
    if (found != cqs_.end()) cq = found->second.lock();
    if (cq == nullptr) continue;  // destroyed meanwhile
    cq->CountEvent();
    return cq;
  }
}

CompletionQueueState::CompletionQueueState(std::shared_ptr<Session> session,
                                           std::shared_ptr<CompletionChannelState> channel, uint64_t handle,
                                           uint32_t depth, MappedQueue ring, void* context, uint32_t comp_vector,
                                           const Lane& lane) noexcept
    : session_(std::move(session)),
      channel_(std::move(channel)),
      handle_(handle),
      depth_(depth),
      header_(reinterpret_cast<shm::CqHeader*>(ring.data)),
      context_(context),
      comp_vector_(comp_vector),
      lane_(lane),
      reader_(header_, ring.slot_count) {}

absl::StatusOr<std::shared_ptr<CompletionQueueState>> CompletionQueueState::Create(
    const std::shared_ptr<Session>& session, uint32_t device_index, uint32_t depth,
    const std::shared_ptr<CompletionChannelState>& channel, void* context, uint32_t comp_vector) {
  v1::CreateCqRequest request;
  request.set_comp_vector(comp_vector);
  request.set_device_index(device_index);
  request.set_depth(depth);
  request.set_channel(channel == nullptr ? 0 : channel->handle());
  SDK_ASSIGN_OR_RETURN(const v1::CreateCqReply reply, session->Call(rpc::kCreateCq, request));
  const absl::StatusOr<LaneQueue> queue =
      session->MapQueueInLane(reply, shm::CqBytes(reply.ring().slot_count()), comp_vector);
  if (!queue.ok()) {
    v1::DestroyCqRequest destroy;
    destroy.set_cq(reply.cq());
    session->Release(rpc::kDestroyCq, destroy).IgnoreError();
    return queue.status();
  }
  std::shared_ptr<CompletionQueueState> cq(
      new CompletionQueueState(session, channel, reply.cq(), reply.depth(), queue->ring, context, comp_vector, *queue->lane));
  if (channel != nullptr) channel->AddCq(cq);
  return cq;
}

CompletionQueueState::~CompletionQueueState() {
  if (destroyed_) return;
  if (channel_ != nullptr) channel_->RemoveCq(handle_);
  v1::DestroyCqRequest request;
  request.set_cq(handle_);
  session_->Release(rpc::kDestroyCq, request).IgnoreError();
}

absl::Status CompletionQueueState::Destroy() {
  {
    const std::lock_guard lock(mutex_);
    if (destroyed_) return absl::OkStatus();
    if (!qps_.empty()) {
      return StatusWithErrno(absl::StatusCode::kFailedPrecondition, EBUSY,
                             absl::StrCat("destroy_cq: cq=", handle_, " qps=", qps_.size(), ": still in use"));
    }
    v1::DestroyCqRequest request;
    request.set_cq(handle_);
    SDK_RETURN_IF_ERROR(session_->Release(rpc::kDestroyCq, request));
    destroyed_ = true;
  }
  // From here on, events that are still in the pipe belong to nobody.
  if (channel_ != nullptr) channel_->RemoveCq(handle_);
  std::unique_lock lock(event_mutex_);
  events_acked_changed_.wait(lock, [this] { return events_ == events_acked_; });
  return absl::OkStatus();
}

bool CompletionQueueState::Disarm() noexcept {
  return header_->armed.exchange(shm::kCqNotArmed, std::memory_order_seq_cst) != shm::kCqNotArmed;
}

void CompletionQueueState::CountEvent() noexcept {
  const std::lock_guard lock(event_mutex_);
  ++events_;
}

void CompletionQueueState::AckEvents(uint32_t count) noexcept {
  const std::lock_guard lock(event_mutex_);
  events_acked_ += count;
  events_acked_changed_.notify_all();
}

void CompletionQueueState::Attach(QueuePairState* qp) {
  const std::lock_guard lock(mutex_);
  qps_.push_back(qp);
}

void CompletionQueueState::Detach(QueuePairState* qp) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(qps_, qp);
}

void CompletionQueueState::Purge(uint32_t cookie, SrqState* srq) noexcept {
  const std::lock_guard lock(mutex_);
  reader_.Purge(cookie, [srq](const shm::Cqe& cqe) {
    uint64_t wr_id = cqe.wr_id;
    if (srq != nullptr && (cqe.flags & shm::kCqeRecvQueue) != 0) srq->Retire(&wr_id);
  });
}

size_t CompletionQueueState::Poll(std::span<Wc> out) noexcept {
  const std::lock_guard lock(mutex_);
  if (destroyed_) return 0;
  if (flushing_) return PollFlushed(out);
  const size_t count = PollRing(out);
  if (count != 0 || session_->CheckAliveNowAndThen()) return count;
  // What the daemon wrote before its end comes first.
  if (const size_t last = PollRing(out); last != 0) return last;
  // A daemon that ends in order hangs up first and flushes its QPs after: what it writes from now on was told already.
  flushing_ = true;
  return PollFlushed(out);
}

absl::StatusOr<size_t> CompletionQueueState::Wait(std::span<Wc> out, Deadline deadline, WaitStyle style) {
  if (style == WaitStyle::kPolled) {
    while (true) {
      const size_t count = SpinAndYield([&] { return Poll(out); });
      if (count != 0) return count;
      if (!session_->alive()) {
        if (const size_t flushed = Poll(out); flushed != 0) return flushed;
        return session_->DeadError();
      }
      if (deadline.Passed()) return absl::DeadlineExceededError("cq: no completion in time");
    }
  }
  if (channel_ == nullptr) return absl::FailedPreconditionError("cq: to wait for it, it needs a completion channel");
  if (const size_t count = Poll(out); count != 0) return count;
  const int64_t start_ns = SpinClockNs();
  size_t count = deadline.immediate() ? 0 : SpinBeforeSleep(spin_policy_, start_ns, [&] { return Poll(out); });
  while (count == 0) {
    Arm(false);
    if (count = Poll(out); count != 0) break;
    const absl::StatusOr<std::shared_ptr<CompletionQueueState>> event = channel_->GetEvent(deadline);
    if (event.ok()) (*event)->AckEvents(1);
    count = Poll(out);  // without an event: what was flushed
    if (count == 0 && !event.ok()) return event.status();
  }
  spin_policy_.OnWaited(SpinClockNs() - start_ns);
  return count;
}

size_t CompletionQueueState::PollRing(std::span<Wc> out) noexcept {
  std::array<shm::Cqe, kPollChunk> cqes;
  size_t count = 0;
  while (count < out.size()) {
    const size_t asked = std::min(kPollChunk, out.size() - count);
    const size_t polled = reader_.Poll({cqes.data(), asked});
    for (size_t i = 0; i < polled; ++i) {
      const shm::Cqe& cqe = cqes[i];
      QueuePairState* qp = session_->qps().Find(cqe.qp_cookie);
      if (qp == nullptr) continue;  // of a QP that was destroyed meanwhile
      uint64_t wr_id = cqe.wr_id;
      if ((cqe.flags & shm::kCqeRecvQueue) != 0) {
        if (!qp->RetireRecv(&wr_id)) continue;
      } else {
        qp->RetireSend(cqe.wqe_count);
      }
      out[count++] = Wc{.wr_id = wr_id,
                        .status = static_cast<WcStatus>(cqe.status),
                        .opcode = static_cast<WcOpcode>(cqe.opcode),
                        .flags = WcFlagsOf(cqe),
                        .byte_len = cqe.byte_len,
                        .imm_be = cqe.imm_be,
                        .qpn = cqe.qpn,
                        .src_qpn = cqe.src_qpn,
                        .vendor_err = cqe.vendor_err,
                        .slid = cqe.slid,
                        .service_level = cqe.service_level,
                        .dlid_path_bits = cqe.dlid_path_bits};
    }
    if (polled < asked) break;
  }
  return count;
}

size_t CompletionQueueState::PollFlushed(std::span<Wc> out) noexcept {
  size_t count = 0;
  for (QueuePairState* qp : qps_) {
    count += qp->FlushInto(this, out.subspan(count));
    if (count == out.size()) break;
  }
  return count;
}

}  // namespace sdk

absl::StatusOr<CompletionChannel> CompletionChannel::Create(const Client& client) {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, client.state()->Live());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::CompletionChannelState> state,
                       sdk::CompletionChannelState::Create(session));
  return CompletionChannel(std::move(state));
}

int CompletionChannel::fd() const noexcept { return state_->pipe().fd(); }

absl::StatusOr<CompletionQueue> CompletionChannel::GetEvent(absl::Duration timeout) const {
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::CompletionQueueState> cq,
                       state_->GetEvent(sdk::Deadline::After(timeout)));
  return CompletionQueue(std::move(cq));
}

absl::StatusOr<CompletionQueue> CompletionQueue::Create(const Client& client, uint32_t device_index, uint32_t depth,
                                                        const CompletionChannel* channel, void* context,
                                                        uint32_t comp_vector) {
  if (depth == 0) return absl::InvalidArgumentError("create_cq: depth=0");
  std::shared_ptr<sdk::Session> session;
  std::shared_ptr<sdk::CompletionChannelState> channel_state;
  if (channel != nullptr) {
    channel_state = channel->state();
    session = channel_state->session();
  } else {
    SDK_ASSIGN_OR_RETURN(session, client.state()->Live());
  }
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::CompletionQueueState> state,
                       sdk::CompletionQueueState::Create(session, device_index, depth, channel_state, context,
                                                         comp_vector));
  return CompletionQueue(std::move(state));
}

size_t CompletionQueue::Poll(std::span<Wc> out) noexcept { return state_->Poll(out); }
absl::StatusOr<size_t> CompletionQueue::Wait(std::span<Wc> out, absl::Duration timeout, WaitStyle style) {
  return state_->Wait(out, sdk::Deadline::After(timeout), style);
}
void CompletionQueue::RequestNotify(bool solicited_only) noexcept { state_->Arm(solicited_only); }
void CompletionQueue::AckEvents(uint32_t count) noexcept { state_->AckEvents(count); }
uint32_t CompletionQueue::depth() const noexcept { return state_->depth(); }
uint32_t CompletionQueue::comp_vector() const noexcept { return state_->comp_vector(); }
uint64_t CompletionQueue::handle() const noexcept { return state_->handle(); }
void* CompletionQueue::context() const noexcept { return state_->context(); }
absl::Status CompletionQueue::Destroy() { return state_->Destroy(); }

}  // namespace rdmad
