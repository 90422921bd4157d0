// What a CmId brings along: its QP, its SRQ, their CQs, and memory registered for them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/event_channel.h"
#include "client/sdk/queue_pair.h"
#include "client/sdk/shared_receive_queue.h"
#include "client/sdk/status_macros.h"
#include "rdmad/cm.h"

namespace rdmad {
namespace {

namespace rpc = sdk::rpc;

// A CQ for one queue of an id, with a channel of its own that nobody else sees.
absl::Status MakeMissingCq(const std::shared_ptr<sdk::Session>& session, uint32_t device_index, uint32_t depth,
                           uint32_t comp_vector, CompletionQueue* cq) {
  if (*cq) return absl::OkStatus();
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::CompletionChannelState> channel,
                       sdk::CompletionChannelState::Create(session));
  channel->pipe().SetInternal();
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::CompletionQueueState> state,
                       sdk::CompletionQueueState::Create(session, device_index, std::max(depth, 1u), channel, nullptr,
                                                         comp_vector));
  *cq = CompletionQueue(std::move(state));
  return absl::OkStatus();
}

// Where the QP lives, by what is given of it.
uint32_t VectorOf(const QpInit& init) {
  if (init.send_cq) return init.send_cq.comp_vector();
  if (init.recv_cq) return init.recv_cq.comp_vector();
  return init.srq ? init.srq.state()->comp_vector() : 0;
}

absl::StatusOr<Wc> WaitForWc(sdk::CompletionQueueState& cq, absl::Duration timeout) {
  Wc wc;
  SDK_RETURN_IF_ERROR(cq.Wait({&wc, 1}, sdk::Deadline::After(timeout), WaitStyle::kBlocking).status());
  return wc;
}

}  // namespace

absl::Status CmId::CreateQp(const ProtectionDomain* pd, const QpInit& init) {
  const bool is_datagram = state_->port_space == PortSpace::kUdp;
  if (is_datagram != (init.type == QpType::kUd)) {
    return absl::InvalidArgumentError(absl::StrCat("create_qp: type=", static_cast<int>(init.type), " port_space=0x",
                                                   absl::Hex(static_cast<unsigned>(state_->port_space)),
                                                   ": UD goes with the UDP port space, and only with that"));
  }
  if (qp()) return absl::FailedPreconditionError("create_qp: the id has a QP already");
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::PdState> pd_state, PdFor(pd, "create_qp"));
  const uint32_t device = pd_state->device_index();
  QpInit complete = init;
  if (!complete.srq) complete.srq = srq();
  // Whatever is in the SRQ may complete here.
  const uint32_t receives = complete.srq ? complete.srq.max_wr() : init.cap.max_recv_wr;
  const uint32_t vector = VectorOf(complete);
  SDK_RETURN_IF_ERROR(MakeMissingCq(state_->session, device, init.cap.max_send_wr, vector, &complete.send_cq));
  SDK_RETURN_IF_ERROR(MakeMissingCq(state_->session, device, receives, vector, &complete.recv_cq));
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::QueuePairState> pair,
                       sdk::QueuePairState::Create(pd_state, complete, state_->handle));
  pair->set_state(is_datagram ? QpState::kRts : QpState::kInit);
  const std::lock_guard lock(state_->mutex);
  state_->qp = std::move(pair);
  return absl::OkStatus();
}

void CmId::DestroyQp() {
  std::shared_ptr<sdk::QueuePairState> pair;
  bool id_exists = false;
  {
    const std::lock_guard lock(state_->mutex);
    pair = std::move(state_->qp);
    id_exists = state_->channel != nullptr;
  }
  if (pair == nullptr) return;
  if (id_exists) {
    v1::SetQpRequest request;
    request.set_id(state_->handle);
    state_->session->Call(rpc::kSetQp, request).IgnoreError();
  }
  pair->Destroy().IgnoreError();
}

absl::Status CmId::CreateSrq(const ProtectionDomain* pd, const SrqInit& init) {
  if (srq()) return absl::FailedPreconditionError("create_srq: the id has an SRQ already");
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::PdState> pd_state, PdFor(pd, "create_srq"));
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::SrqState> made, sdk::SrqState::Create(pd_state, init));
  const std::lock_guard lock(state_->mutex);
  state_->srq = std::move(made);
  return absl::OkStatus();
}

void CmId::DestroySrq() {
  std::shared_ptr<sdk::SrqState> gone;  // its end calls the daemon: after the lock
  const std::lock_guard lock(state_->mutex);
  gone = std::move(state_->srq);
}

SharedReceiveQueue CmId::srq() const {
  const std::lock_guard lock(state_->mutex);
  return SharedReceiveQueue(state_->srq);
}

absl::StatusOr<std::shared_ptr<sdk::PdState>> CmId::PdFor(const ProtectionDomain* pd, const char* operation) const {
  const std::optional<uint32_t> device = device_index();
  if (!device.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(operation, ": the id is bound to no device yet; resolve or bind its address"));
  }
  if (pd != nullptr) return pd->state();
  return state_->session->DefaultPd(*device);
}

QueuePair CmId::qp() const {
  const std::lock_guard lock(state_->mutex);
  return QueuePair(state_->qp);
}

absl::StatusOr<ProtectionDomain> CmId::pd() const {
  if (const QueuePair pair = qp()) return ProtectionDomain(pair.state()->pd());
  if (const SharedReceiveQueue queue = srq()) return ProtectionDomain(queue.state()->pd());
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::PdState> state, PdFor(nullptr, "pd"));
  return ProtectionDomain(std::move(state));
}

absl::StatusOr<MemoryRegion> CmId::RegMsgs(const void* addr, size_t length_bytes) const {
  SDK_ASSIGN_OR_RETURN(const ProtectionDomain domain, pd());
  return domain.RegMsgs(addr, length_bytes);
}

absl::StatusOr<MemoryRegion> CmId::RegRead(const void* addr, size_t length_bytes) const {
  SDK_ASSIGN_OR_RETURN(const ProtectionDomain domain, pd());
  return domain.RegRead(addr, length_bytes);
}

absl::StatusOr<MemoryRegion> CmId::RegWrite(const void* addr, size_t length_bytes) const {
  SDK_ASSIGN_OR_RETURN(const ProtectionDomain domain, pd());
  return domain.RegWrite(addr, length_bytes);
}

absl::StatusOr<Wc> CmId::GetSendComp(absl::Duration timeout) {
  const QueuePair pair = qp();
  if (!pair) return absl::FailedPreconditionError("get_send_comp: the id has no QP");
  return WaitForWc(*pair.state()->send_cq(), timeout);
}

absl::StatusOr<Wc> CmId::GetRecvComp(absl::Duration timeout) {
  const QueuePair pair = qp();
  if (!pair) return absl::FailedPreconditionError("get_recv_comp: the id has no QP");
  return WaitForWc(*pair.state()->recv_cq(), timeout);
}

}  // namespace rdmad
