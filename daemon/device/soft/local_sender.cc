#include "daemon/device/soft/local_sender.h"

#include <algorithm>
#include <atomic>

#include "daemon/device/soft/remote_atomic.h"
#include "daemon/device/soft/requester.h"
#include "daemon/device/soft/soft_qp.h"

namespace rdmad::soft {

using device::QpState;
using device::WcStatus;
using device::WrOpcode;

namespace {

wire::Operation OperationOf(const SendWqe& wqe) noexcept {
  if (wqe.is_send()) return wire::Operation::kSend;
  if (wqe.is_write()) return wire::Operation::kWrite;
  return wqe.is_read() ? wire::Operation::kReadRequest : wire::Operation::kAtomicRequest;
}

bool TakesReceive(const SendWqe& wqe) noexcept {
  return wqe.is_send() || wqe.opcode == WrOpcode::kRdmaWriteWithImm;
}

uint32_t RemoteAccessFor(const SendWqe& wqe) noexcept {
  if (wqe.is_write()) return device::kAccessRemoteWrite;
  return wqe.is_read() ? device::kAccessRemoteRead : device::kAccessRemoteAtomic;
}

// Where the WR's remote range lies; null if its key does not hold.
std::byte* FindTarget(const SendWqe& wqe, const QpContext& peer) noexcept {
  return peer.core.mrs.Translate(wqe.rkey, peer.pd_id, wqe.remote_addr, wqe.length_bytes,
                                 RemoteAccessFor(wqe), peer.key_scope);
}

// What the requester hears of what the responder found.
WcStatus StatusFor(Finding finding) noexcept {
  switch (finding) {
    case Finding::kRemoteAccess:
      return WcStatus::kRemAccessErr;
    case Finding::kReceiveBroken:
      return WcStatus::kRemOpErr;
    case Finding::kPass:
    case Finding::kNotReady:
    case Finding::kInvalidRequest:
    case Finding::kReceiveTooShort:
      break;
  }
  return WcStatus::kRemInvReqErr;
}

}  // namespace

SoftQp* LocalSender::FindPeer() const noexcept {
  if (!qp_.core.config.local_path) return nullptr;
  if (address_generation_ != qp_.core.local_generation) {
    address_generation_ = qp_.core.local_generation;
    address_is_local_ = qp_.core.IsLocal(qp_.flow.remote);
  }
  if (!address_is_local_) return nullptr;
  SoftQp* const peer = qp_.core.qps.FindConnected(qp_.attr.dest_qpn);
  if (peer == nullptr) return nullptr;
  const QpContext& other = peer->context();
  const bool connected = other.init.type == qp_.init.type && other.attr.dest_qpn == qp_.qpn &&
                         other.flow.remote == qp_.flow.local && other.flow.local == qp_.flow.remote;
  return connected ? peer : nullptr;
}

// The peer would also execute a packet that came now.
SoftQp* LocalSender::FindReady() const noexcept {
  SoftQp* const peer = FindPeer();
  if (peer == nullptr) return nullptr;
  const QpState state = peer->context().state();
  const Responder& responder = peer->responder();
  if (!ReceivesIn(state) || !responder.Executes()) return nullptr;
  if (qp_.reliable() && responder.expected_psn() != requester_.next_psn()) return nullptr;
  // Half a message that the other side no longer knows of cannot be finished.
  if (active_ && !responder.local_message()) return nullptr;
  return peer;
}

bool LocalSender::Run(uint32_t budget_bytes, TimeNs now, RunResult* result) noexcept {
  SendQueue& queue = requester_.queue();
  uint32_t spent = 0;
  bool more = true;
  while (spent < budget_bytes && !queue.empty()) {
    SoftQp* const peer = FindReady();
    if (peer == nullptr) break;  // the caller goes over to the network
    const SendWqe& wqe = queue[queue.head()];
    if (wqe.is_local()) break;  // the caller's
    if (!active_) {
      // A queue that is drained finishes what it has begun, which a message has that waits.
      const bool may_begin = qp_.state() == QpState::kRts || waits_;
      const Step step = may_begin ? Begin(wqe, *peer, now) : Step::kStop;
      more = step != Step::kStop;
      if (!more) break;
      if (step == Step::kNext) {
        spent += kPacketOverheadBytes;
        ++result->work;
        continue;
      }
    }
    // An atomic is executed whole, whatever is left of the budget: each slice would execute it again.
    const uint32_t slice = wqe.is_atomic()
                               ? wqe.length_bytes
                               : std::min(wqe.length_bytes - offset_, budget_bytes - spent);
    spent += slice + kPacketOverheadBytes;
    ++result->work;
    more = CopySlice(wqe, *peer, slice, now) != Step::kStop;
    if (!more) break;
  }
  result->spent_bytes += spent;
  return more;
}

// The checks of a request's first packet, all at once.
LocalSender::Step LocalSender::Begin(const SendWqe& wqe, SoftQp& peer, TimeNs now) noexcept {
  if (wqe.verdict != WcStatus::kSuccess) {
    requester_.FailHead(wqe.verdict, now);
    return Step::kStop;
  }
  if (wqe.wants_response() && qp_.attr.max_rd_atomic == 0) {  // taken back while it was queued
    requester_.FailHead(WcStatus::kLocQpOpErr, now);
    return Step::kStop;
  }
  Responder& responder = peer.responder();
  responder.BeginLocalMessage();
  if (!responder.MayDo(OperationOf(wqe))) return Refused(Finding::kInvalidRequest, peer, now);
  // The first packet of several names the memory, only the last one takes a receive.
  if (wqe.is_write() && wqe.packet_count > 1 && FindTarget(wqe, peer.context()) == nullptr) {
    return Refused(Finding::kRemoteAccess, peer, now);
  }
  if (TakesReceive(wqe)) {
    if (responder.TakeReceive() == Finding::kNotReady) {
      if (!qp_.reliable()) return Refused(Finding::kNotReady, peer, now);
      if (FailsHere(wqe, now)) return Step::kStop;
      responder.set_local_sender_waits();
      waits_ = true;
      Count(qp_.core.counters.local_rnr_waits);
      requester_.OnNotReady(peer.context().attr.min_rnr_timer, now);
      return Step::kStop;
    }
    if (wqe.is_send() && !responder.ReceiveFits(wqe.length_bytes)) {
      return Refused(Finding::kReceiveTooShort, peer, now);
    }
  }
  const bool names_memory = !wqe.is_send() && wqe.length_bytes > 0;
  if (wqe.is_atomic() && wqe.remote_addr % sizeof(uint64_t) != 0) {
    return Refused(Finding::kInvalidRequest, peer, now);
  }
  if (wqe.opcode == WrOpcode::kSendWithInv && !responder.MayInvalidate(wqe.imm_be)) {
    return Refused(Finding::kInvalidRequest, peer, now);
  }
  if (names_memory) {
    const std::byte* const target = FindTarget(wqe, peer.context());
    if (target == nullptr) return Refused(Finding::kRemoteAccess, peer, now);
    if (wqe.is_atomic() && !IsAtomicTarget(target)) {
      return Refused(Finding::kInvalidRequest, peer, now);
    }
  }
  active_ = true;
  waits_ = false;
  offset_ = 0;
  local_cursor_ = remote_cursor_ = {};
  return Step::kGoOn;
}

// Of the WR at the head.
SgeList LocalSender::LocalList(const SendWqe& wqe) const noexcept {
  return {.sges = requester_.queue().Sges(requester_.queue().head()),
          .pd_id = qp_.pd_id,
          .access = wqe.wants_response() ? uint32_t{device::kAccessLocalWrite} : 0,
          .host_pointers = wqe.is_inline()};
}

// A packet that cannot be made is not sent: what is wrong on this side counts before the peer's
// refusal of a first packet. True if the WR has failed for that.
bool LocalSender::FailsHere(const SendWqe& wqe, TimeNs now) noexcept {
  if (active_ || IsAccessible(LocalList(wqe), qp_.core.mrs)) return false;
  requester_.FailHead(WcStatus::kLocProtErr, now);
  return true;
}

LocalSender::Step LocalSender::CopySlice(const SendWqe& wqe, SoftQp& peer, uint32_t bytes,
                                         TimeNs now) noexcept {
  const device::Sge range{
      .addr = wqe.remote_addr, .length_bytes = wqe.length_bytes, .lkey = wqe.rkey};
  const SgeList remote = wqe.is_send() ? peer.responder().ReceiveList()
                                       : SgeList{.sges = {&range, 1},
                                                 .pd_id = peer.context().pd_id,
                                                 .access = RemoteAccessFor(wqe),
                                                 .qp_scope = peer.context().key_scope};
  const SgeList local = LocalList(wqe);
  MrTable& mrs = qp_.core.mrs;
  const bool ends = offset_ + bytes == wqe.length_bytes;

  bool local_failed = false;
  bool remote_failed = false;
  if (wqe.is_atomic()) {
    // The target's check and the local one come first, since an atomic cannot be taken back.
    std::byte* const target = FindTarget(wqe, peer.context());
    remote_failed = target == nullptr;
    local_failed = !remote_failed && !IsAccessible(local, mrs);
    if (!remote_failed && !local_failed) {
      const bool swap = wqe.opcode == WrOpcode::kCompareSwap;
      const uint64_t original =
          swap ? CompareSwap(target, wqe.compare_add, wqe.swap) : FetchAdd(target, wqe.compare_add);
      const device::Sge value{.addr = reinterpret_cast<uintptr_t>(&original),
                              .length_bytes = sizeof(original),
                              .lkey = 0};
      SgeCursor from;
      (void)CopyBetween({{&value, 1}, 0, 0, true}, from, local, local_cursor_, sizeof(original),
                        true, mrs);
    }
  } else if (bytes > 0) {
    const bool pull = wqe.is_read();
    const CopyResult copied =
        pull ? CopyBetween(remote, remote_cursor_, local, local_cursor_, bytes, ends, mrs)
             : CopyBetween(local, local_cursor_, remote, remote_cursor_, bytes, ends, mrs);
    const bool source_failed = copied == CopyResult::kSourceError;
    const bool target_failed = copied == CopyResult::kTargetError;
    local_failed = pull ? target_failed : source_failed;
    remote_failed = pull ? source_failed : target_failed;
  }
  if (local_failed) {
    requester_.FailHead(WcStatus::kLocProtErr, now);
    return Step::kStop;
  }
  if (remote_failed) {
    return Refused(wqe.is_send() ? Finding::kReceiveBroken : Finding::kRemoteAccess, peer, now);
  }
  offset_ += bytes;
  if (!ends) return Step::kGoOn;

  const bool invalidates = wqe.opcode == WrOpcode::kSendWithInv;
  if (invalidates && !mrs.InvalidateWindow(wqe.imm_be, peer.context().key_scope)) {
    return Refused(Finding::kInvalidRequest, peer, now);
  }
  active_ = false;
  Count(qp_.core.counters.local_messages);
  Count(qp_.core.counters.local_bytes, wqe.length_bytes);
  peer.responder().FinishLocalMessage(wqe.packet_count,
                                      {.completes = TakesReceive(wqe),
                                       .is_write = wqe.is_write(),
                                       .has_imm = wqe.has_imm(),
                                       .has_inv = invalidates,
                                       .solicited = (wqe.flags & shm::kWorkSolicited) != 0,
                                       .imm_be = wqe.imm_be,
                                       .byte_len = wqe.length_bytes});
  requester_.FinishHeadLocally();
  return Step::kNext;
}

// Both ends fail as after a NAK. The receive first: a QP connected to itself flushes it with the
// rest. On UC the sender never hears of it.
LocalSender::Step LocalSender::Refused(Finding finding, SoftQp& peer, TimeNs now) noexcept {
  if (FailsHere(requester_.queue()[requester_.queue().head()], now)) return Step::kStop;
  if (!qp_.reliable()) {
    active_ = false;
    requester_.FinishHeadLocally();
    if (peer.responder().DropMessage(finding)) peer.EnterError(now);
    return Step::kNext;
  }
  peer.responder().FailReceive(finding);
  requester_.FailHead(StatusFor(finding), now);
  peer.responder().RaiseFor(finding);
  peer.EnterError(now);
  return Step::kStop;
}

}  // namespace rdmad::soft
