// What an endpoint sends, receives, reads and writes.
#include <arpa/inet.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/endpoint_state.h"
#include "client/sdk/pool_mapping.h"
#include "client/sdk/status_macros.h"

namespace rdmad::sdk {

// ---- sending ----

absl::StatusOr<uint32_t> EndpointState::LkeyOf(const Buffer& buffer) {
  PoolMapping* pool = buffer.mapping().get();
  if (pool == nullptr) return absl::InvalidArgumentError("endpoint: an empty Buffer");
  if (pool == last_pool_ && pool->handle() == last_pool_handle_) return last_lkey_;
  if (pool->session() != session_) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint: the buffer is of session ", pool->session()->id(), ", the endpoint of session ",
                     session_->id(), "; was the daemon restarted? allocate the buffer anew"));
  }
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<Registration> cover, pd_->Cover(*pool));
  last_pool_ = pool;
  last_pool_handle_ = pool->handle();
  last_lkey_ = cover->lkey();
  return last_lkey_;
}

absl::Status EndpointState::PostOne(const SendWr& wr, const char* what) {
  const uint32_t slot = free_slots_.back();
  SendWr numbered = wr;
  numbered.wr_id = slot;
  SDK_RETURN_IF_ERROR(qp_->PostSend({&numbered, 1}, nullptr));
  free_slots_.pop_back();
  send_slots_[slot].what = what;
  ++started_operations_;
  return absl::OkStatus();
}

absl::Status EndpointState::PostBuffer(Buffer& buffer, std::optional<uint32_t> imm) {
  if (buffer.size() > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("send: bytes=", buffer.size(), " limit=", UINT32_MAX));
  }
  Sge sge{reinterpret_cast<uintptr_t>(buffer.data()), static_cast<uint32_t>(buffer.size()), 0};
  SendWr wr;
  wr.opcode = imm.has_value() ? WrOpcode::kSendWithImm : WrOpcode::kSend;
  wr.imm_be = htonl(imm.value_or(0));
  if (!buffer.empty()) wr.sges = {&sge, 1};
  if (buffer.size() <= qp_->cap().max_inline_bytes) {
    wr.flags |= kSendInline;
    SDK_RETURN_IF_ERROR(PostOne(wr, "send"));
    buffer.Release();
    return absl::OkStatus();
  }
  SDK_ASSIGN_OR_RETURN(sge.lkey, LkeyOf(buffer));
  const uint32_t slot = free_slots_.back();
  SDK_RETURN_IF_ERROR(PostOne(wr, "send"));
  send_slots_[slot].buffer = std::move(buffer);
  return absl::OkStatus();
}

absl::Status EndpointState::WaitForSlot(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  // What is done is given back early, so that a sender who never waits does not hold on to its buffers.
  if (free_slots_.size() * 2 <= send_slots_.size()) Process();
  while (true) {
    SDK_RETURN_IF_ERROR(Ended());
    if (HasFreeSlot()) return absl::OkStatus();
    if (!Process()) SDK_RETURN_IF_ERROR(WaitForProgress(lock, *send_cq_, deadline));
  }
}

absl::Status EndpointState::Send(Buffer buffer, std::optional<uint32_t> imm, Deadline deadline) {
  std::unique_lock lock(mutex_);
  SDK_RETURN_IF_ERROR(WaitForSlot(lock, deadline));
  return PostBuffer(buffer, imm);
}

absl::StatusOr<bool> EndpointState::TrySend(Buffer& buffer, std::optional<uint32_t> imm) {
  const std::lock_guard lock(mutex_);
  if (free_slots_.size() * 2 <= send_slots_.size()) Process();
  SDK_RETURN_IF_ERROR(Ended());
  if (!HasFreeSlot()) return false;
  SDK_RETURN_IF_ERROR(PostBuffer(buffer, imm));
  return true;
}

absl::Status EndpointState::SendCopy(std::span<const std::byte> bytes, Deadline deadline) {
  if (bytes.size() > qp_->cap().max_inline_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("send: bytes=", bytes.size(), " max_inline_bytes=", qp_->cap().max_inline_bytes,
                     ": too long to be copied; send a Buffer"));
  }
  std::unique_lock lock(mutex_);
  SDK_RETURN_IF_ERROR(WaitForSlot(lock, deadline));
  const Sge sge{reinterpret_cast<uintptr_t>(bytes.data()), static_cast<uint32_t>(bytes.size()), 0};
  SendWr wr;
  wr.flags |= kSendInline;
  if (!bytes.empty()) wr.sges = {&sge, 1};
  return PostOne(wr, "send");
}

absl::StatusOr<uint64_t> EndpointState::PostOneSided(const OneSided& request) {
  const Buffer& local = *request.local;
  const RemoteBuffer& remote = request.remote;
  if (request.offset_bytes > remote.length_bytes || remote.length_bytes - request.offset_bytes < local.size()) {
    return absl::InvalidArgumentError(absl::StrCat("remote buffer: offset_bytes=", request.offset_bytes, " bytes=",
                                                   local.size(), " length_bytes=", remote.length_bytes));
  }
  if (local.size() > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("one-sided: bytes=", local.size(), " limit=", UINT32_MAX));
  }
  Sge sge{reinterpret_cast<uintptr_t>(local.data()), static_cast<uint32_t>(local.size()), 0};
  SDK_ASSIGN_OR_RETURN(sge.lkey, LkeyOf(local));
  SendWr wr;
  wr.opcode = request.imm.has_value() ? WrOpcode::kRdmaWriteWithImm : request.opcode;
  wr.imm_be = htonl(request.imm.value_or(0));
  if (!local.empty()) wr.sges = {&sge, 1};
  wr.remote_addr = remote.addr + request.offset_bytes;
  wr.rkey = remote.rkey;
  SDK_RETURN_IF_ERROR(PostOne(wr, request.opcode == WrOpcode::kRdmaRead ? "read" : "write"));
  return started_operations_;
}

absl::StatusOr<uint64_t> EndpointState::StartOneSided(const OneSided& request) {
  std::unique_lock lock(mutex_);
  SDK_RETURN_IF_ERROR(WaitForSlot(lock, Deadline::Infinite()));
  return PostOneSided(request);
}

absl::StatusOr<std::optional<uint64_t>> EndpointState::TryStartOneSided(const OneSided& request) {
  const std::lock_guard lock(mutex_);
  if (free_slots_.size() * 2 <= send_slots_.size()) Process();
  SDK_RETURN_IF_ERROR(Ended());
  if (!HasFreeSlot()) return std::optional<uint64_t>();
  SDK_ASSIGN_OR_RETURN(const uint64_t operation, PostOneSided(request));
  return std::optional<uint64_t>(operation);
}

absl::StatusOr<bool> EndpointState::TryDone(uint64_t operation) {
  const std::lock_guard lock(mutex_);
  if (succeeded_operations_ < operation) Process();
  if (succeeded_operations_ >= operation) return true;
  SDK_RETURN_IF_ERROR(Ended());
  return false;
}

absl::Status EndpointState::WaitFor(uint64_t operation, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (succeeded_operations_ >= operation) return absl::OkStatus();
    if (Process()) continue;
    SDK_RETURN_IF_ERROR(Ended());
    SDK_RETURN_IF_ERROR(WaitForProgress(lock, *send_cq_, deadline));
  }
}

absl::Status EndpointState::Flush(Deadline deadline) {
  uint64_t operation;
  {
    const std::lock_guard lock(mutex_);
    operation = started_operations_;
  }
  return WaitFor(operation, deadline);
}

absl::StatusOr<bool> EndpointState::TryFlush() {
  const std::lock_guard lock(mutex_);
  if (!AllDone()) Process();
  if (succeeded_operations_ == started_operations_) return true;
  SDK_RETURN_IF_ERROR(Ended());
  return false;
}

// ---- receiving ----

absl::StatusOr<std::optional<Buffer>> EndpointState::TryReceive() {
  const std::lock_guard lock(mutex_);
  if (received_.empty()) Process();
  if (!received_.empty()) {
    Buffer buffer = std::move(received_.front());
    received_.pop_front();
    return std::optional<Buffer>(std::move(buffer));
  }
  SDK_RETURN_IF_ERROR(Ended());
  return std::optional<Buffer>();
}

absl::StatusOr<Buffer> EndpointState::Receive(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (received_.empty()) Process();
    if (!received_.empty()) {
      Buffer buffer = std::move(received_.front());
      received_.pop_front();
      return buffer;
    }
    SDK_RETURN_IF_ERROR(Ended());
    SDK_RETURN_IF_ERROR(WaitForProgress(lock, *recv_cq_, deadline));
  }
}

}  // namespace rdmad::sdk
