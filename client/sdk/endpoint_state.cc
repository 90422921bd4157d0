#include "client/sdk/endpoint_state.h"

#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/pipe_status.h"
#include "client/sdk/pool_mapping.h"
#include "client/sdk/spin.h"
#include "client/sdk/status_macros.h"

namespace rdmad::sdk {
namespace {

constexpr size_t kPollBatch = 16;
constexpr int kSpinsBeforeYield = 32;
// How long after the flush the reason for it may take.
constexpr absl::Duration kReasonTimeout = absl::Milliseconds(500);

absl::Status ClosedByPeer() {
  return StatusWithErrno(absl::StatusCode::kOutOfRange, ENOTCONN, "connection closed by the peer");
}

}  // namespace

EndpointState::EndpointState(const std::shared_ptr<Session>& session, std::unique_ptr<CmId> id,
                             const EndpointOptions& options)
    : session_(session), options_(options), id_(std::move(id)) {
  HubMember* member = this;
  id_->set_context(member);
}

absl::StatusOr<std::shared_ptr<EndpointState>> EndpointState::Create(const std::shared_ptr<Session>& session,
                                                                     std::unique_ptr<CmId> id,
                                                                     const EndpointOptions& options) {
  if (options.send_depth == 0 || options.recv_depth == 0 || options.max_recv_bytes == 0) {
    return absl::InvalidArgumentError("endpoint: send_depth, recv_depth and max_recv_bytes must not be 0");
  }
  std::shared_ptr<EndpointState> state(new EndpointState(session, std::move(id), options));
  SDK_RETURN_IF_ERROR(state->Prepare());
  return state;
}

absl::Status EndpointState::Prepare() {
  hub_ = EndpointHub::Of(session_);
  const std::optional<uint32_t> device = id_->device_index();
  if (!device.has_value()) return absl::FailedPreconditionError("endpoint: the id is bound to no device");
  SDK_ASSIGN_OR_RETURN(pd_, session_->DefaultPd(*device));
  if (options_.wait == WaitStyle::kBlocking) {
    SDK_ASSIGN_OR_RETURN(channel_, CompletionChannelState::Create(session_));
    channel_->pipe().SetInternal();
  }
  SDK_ASSIGN_OR_RETURN(send_cq_,
                       CompletionQueueState::Create(session_, *device, options_.send_depth, channel_, nullptr,
                                                    options_.comp_vector));
  SDK_ASSIGN_OR_RETURN(recv_cq_,
                       CompletionQueueState::Create(session_, *device, options_.recv_depth, channel_, nullptr,
                                                    options_.comp_vector));
  QpInit init;
  init.send_cq = CompletionQueue(send_cq_);
  init.recv_cq = CompletionQueue(recv_cq_);
  init.cap.max_send_wr = options_.send_depth;
  init.cap.max_recv_wr = options_.recv_depth;
  init.cap.max_inline_bytes = options_.max_inline_bytes;
  const ProtectionDomain pd(pd_);
  SDK_RETURN_IF_ERROR(id_->CreateQp(&pd, init));
  qp_ = id_->qp().state();

  send_slots_.resize(options_.send_depth);
  for (uint32_t slot = options_.send_depth; slot-- > 0;) free_slots_.push_back(slot);
  recv_slots_.resize(options_.recv_depth);
  for (uint32_t slot = options_.recv_depth; slot-- > 0;) empty_recv_slots_.push_back(slot);
  session_->AddReaper(this);
  const std::lock_guard lock(mutex_);
  return FillReceives();
}

EndpointState::~EndpointState() {
  Close(Deadline::After(absl::Seconds(5))).IgnoreError();
  session_->RemoveReaper(this);
  // Blocks until no OnCmEvent can come any more.
  id_ = nullptr;
  if (hub_channel_ != nullptr) hub_->Leave(hub_channel_);
}

absl::Status EndpointState::Accept(const CmEvent& request, const ConnParam& param) {
  SDK_RETURN_IF_ERROR(id_->Accept(param));
  accepted_ = true;
  peer_private_data_ = request.param().private_data;
  return absl::OkStatus();
}

absl::Status EndpointState::OnEstablished(const CmEvent& event) {
  if (!accepted_) peer_private_data_ = event.param().private_data;
  SDK_ASSIGN_OR_RETURN(hub_channel_, hub_->Adopt(*id_));
  return absl::OkStatus();
}

void EndpointState::OnCmEvent(const CmEvent& event) noexcept {
  if (event.type() == CmEventType::kDisconnected) peer_closed_.store(true, std::memory_order_release);
  if (event.type() == CmEventType::kDeviceRemoval) device_removed_.store(true, std::memory_order_release);
}

void EndpointState::Reap() noexcept {
  const std::lock_guard lock(mutex_);
  if (!AllDone()) Process();
}

// ---- completions ----

bool EndpointState::Process() {
  std::array<Wc, kPollBatch> wcs;
  bool progress = false;
  size_t count;
  do {
    count = recv_cq_->Poll(wcs);
    for (size_t i = 0; i < count; ++i) OnRecvCompletion(wcs[i]);
    progress |= count != 0;
  } while (count == wcs.size());
  do {
    count = send_cq_->Poll(wcs);
    for (size_t i = 0; i < count; ++i) OnSendCompletion(wcs[i]);
    progress |= count != 0;
  } while (count == wcs.size());
  // In batches, so that a stream of messages does not cost one doorbell each.
  // Not while the application leaves messages lying about: then the sender waits.
  if (!flushed_ && !empty_recv_slots_.empty() && empty_recv_slots_.size() * 4 >= recv_slots_.size() &&
      received_.size() < recv_slots_.size()) {
    // Out of memory for now: it is tried again as long as any receive is posted.
    if (absl::Status filled = FillReceives(); !filled.ok() && empty_recv_slots_.size() == recv_slots_.size()) {
      Fail(std::move(filled));
    }
  }
  if (progress) {
    ++progress_count_;
    if (followers_ != 0) progress_.notify_all();
  }
  return progress;
}

void EndpointState::OnRecvCompletion(const Wc& wc) {
  const uint32_t slot = static_cast<uint32_t>(wc.wr_id);
  Buffer buffer = std::move(recv_slots_[slot]);
  empty_recv_slots_.push_back(slot);
  if (wc.status == WcStatus::kSuccess) {
    buffer.resize(wc.opcode == WcOpcode::kRecvRdmaWithImm ? 0 : wc.byte_len);
    if ((wc.flags & kWcWithImm) != 0) buffer.set_imm(ntohl(wc.imm_be));
    received_.push_back(std::move(buffer));
    return;
  }
  if (wc.status != WcStatus::kWrFlushErr) {
    Fail(absl::Status(WcStatusToStatus(wc.status).code(), absl::StrCat("receive: ", WcStatusString(wc.status),
                                                                       ": max_recv_bytes=", options_.max_recv_bytes)));
  }
  flushed_ = true;
}

void EndpointState::OnSendCompletion(const Wc& wc) {
  const uint32_t slot = static_cast<uint32_t>(wc.wr_id);
  if (wc.status != WcStatus::kSuccess) {
    if (wc.status != WcStatus::kWrFlushErr) {
      const absl::Status status = WcStatusToStatus(wc.status);
      Fail(StatusWithErrno(status.code(), StatusToErrno(status),
                           absl::StrCat(send_slots_[slot].what, ": peer=", id_->peer_addr().ToString(), ": ",
                                        std::string(status.message()))));
    }
    flushed_ = true;
  } else {
    ++succeeded_operations_;
  }
  send_slots_[slot].buffer.Release();
  free_slots_.push_back(slot);
}

void EndpointState::Fail(absl::Status status) {
  if (error_.ok()) error_ = std::move(status);
  flushed_ = true;
}

absl::Status EndpointState::Ended() {
  if (!error_.ok()) return error_;
  if (closed_) return absl::FailedPreconditionError("the endpoint was closed");
  if (!session_->alive()) return session_->DeadError();
  if (!flushed_) return absl::OkStatus();
  // The flush may be seen a moment before its reason.
  if (hub_channel_ != nullptr) {
    // Not at all if another endpoint has found it already: then perhaps no event comes any more.
    const Deadline deadline = Deadline::After(kReasonTimeout);
    while (!peer_closed_.load(std::memory_order_acquire) && !device_removed_.load(std::memory_order_acquire) &&
           session_->alive() && !deadline.Passed()) {
      hub_->Dispatch(hub_channel_, deadline);
    }
  }
  if (!session_->alive()) return session_->DeadError();
  if (device_removed_.load(std::memory_order_acquire)) {
    error_ = absl::UnavailableError("the device was removed");
  } else if (peer_closed_.load(std::memory_order_acquire)) {
    // The answer that ends the connection for the peer, too.
    id_->Disconnect().IgnoreError();
    error_ = ClosedByPeer();
  } else {
    error_ = absl::AbortedError(absl::StrCat("connection lost: local=", id_->local_addr().ToString(),
                                             " peer=", id_->peer_addr().ToString(), ": the QP went into error"));
  }
  return error_;
}

absl::Status EndpointState::FillReceives() {
  std::array<RecvWr, kPollBatch> wrs;
  std::array<Sge, kPollBatch> sges;
  while (!empty_recv_slots_.empty()) {
    size_t count = 0;
    absl::Status status;
    while (count < wrs.size() && !empty_recv_slots_.empty()) {
      absl::StatusOr<Buffer> buffer = hub_->AllocateReceive(options_.max_recv_bytes);
      if (!buffer.ok()) {
        status = buffer.status();
        break;
      }
      absl::StatusOr<uint32_t> lkey = LkeyOf(*buffer);
      if (!lkey.ok()) {
        status = lkey.status();
        break;
      }
      const uint32_t slot = empty_recv_slots_.back();
      empty_recv_slots_.pop_back();
      sges[count] = {reinterpret_cast<uintptr_t>(buffer->data()), options_.max_recv_bytes, *lkey};
      wrs[count] = {slot, {&sges[count], 1}};
      recv_slots_[slot] = std::move(buffer).value();
      ++count;
    }
    size_t posted = 0;
    const absl::Status post = qp_->PostRecv({wrs.data(), count}, &posted);
    for (size_t i = posted; i < count; ++i) {
      recv_slots_[wrs[i].wr_id].Release();
      empty_recv_slots_.push_back(static_cast<uint32_t>(wrs[i].wr_id));
    }
    SDK_RETURN_IF_ERROR(post);
    SDK_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// ---- waiting ----

absl::Status EndpointState::WaitForProgress(std::unique_lock<std::mutex>& lock, CompletionQueueState& cq,
                                            Deadline deadline) {
  if (channel_ == nullptr) {
    for (int spin = 0; spin < kSpinsBeforeYield; ++spin) {
      if (Process()) return absl::OkStatus();
      CpuRelax();
    }
    lock.unlock();
    ::sched_yield();  // see spin.h
    lock.lock();
    if (!deadline.infinite() && deadline.Passed()) return absl::DeadlineExceededError("endpoint: nothing in time");
    return absl::OkStatus();
  }
  cq.Arm(false);
  if (!someone_sleeps_ && followers_ != 0) {
    // Who sleeps does so for the followers, too: what woke the last sleeper may have been the event that one of them had
    // asked for, and a follower asks only once.
    send_cq_->Arm(false);
    recv_cq_->Arm(false);
  }
  if (Process() || !session_->alive()) return absl::OkStatus();  // the caller finds out
  if (someone_sleeps_) {
    const uint64_t seen = progress_count_;
    ++followers_;
    const auto moved = [&] { return progress_count_ != seen || !someone_sleeps_; };
    bool in_time = true;
    if (deadline.infinite()) {
      progress_.wait(lock, moved);
    } else {
      in_time = progress_.wait_for(lock, absl::ToChronoNanoseconds(deadline.Left()), moved);
    }
    --followers_;
    return in_time ? absl::OkStatus() : absl::DeadlineExceededError("endpoint: nothing in time");
  }
  someone_sleeps_ = true;
  lock.unlock();
  shm::CompletionEvent event;
  const PipeResult result = channel_->pipe().Read(&event, sizeof(event), deadline);
  lock.lock();
  someone_sleeps_ = false;
  if (followers_ != 0) progress_.notify_all();  // one of them sleeps next
  if (result == PipeResult::kHangup) {
    session_->MarkDead();
    return absl::OkStatus();
  }
  return result == PipeResult::kRecord ? absl::OkStatus() : PipeStatus(result, "endpoint");
}

bool EndpointState::Arm(bool receives, bool sends) {
  const std::lock_guard lock(mutex_);
  if (channel_ == nullptr) return false;
  // What woke the caller last has served its purpose.
  shm::CompletionEvent event;
  PipeResult result;
  do {
    result = channel_->pipe().TryRead(&event, sizeof(event));
  } while (result == PipeResult::kRecord);
  if (result == PipeResult::kHangup) session_->MarkDead();
  if (receives) recv_cq_->Arm(false);
  if (sends) send_cq_->Arm(false);
  if (Process() || flushed_ || !session_->alive()) return false;
  // What other calls have found done since the last time may have made room for what an earlier one was refused: a caller
  // that slept now might have nothing under way that could wake it.
  if (sends && std::exchange(succeeded_when_armed_, succeeded_operations_) != succeeded_operations_) return false;
  return !receives || received_.empty();
}

// ---- the rest ----

absl::StatusOr<MemoryRegion> EndpointState::Share(const Buffer& buffer, uint32_t access) {
  if (!buffer) return absl::InvalidArgumentError("share: an empty Buffer");
  if ((access & (kAccessRemoteWrite | kAccessRemoteAtomic)) != 0) access |= kAccessLocalWrite;
  return RegExact(pd_, buffer.data(), buffer.size(), access, "share");
}

absl::Status EndpointState::Close(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return absl::OkStatus();
  }
  // At once where the connection has ended already: then this says whether all of it had arrived.
  const absl::Status flushed = hub_channel_ != nullptr ? Flush(deadline) : absl::OkStatus();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return absl::OkStatus();
  }
  if (hub_channel_ != nullptr && session_->alive()) id_->Disconnect().IgnoreError();
  const std::lock_guard lock(mutex_);
  ++progress_count_;
  progress_.notify_all();
  return flushed;
}

}  // namespace rdmad::sdk
