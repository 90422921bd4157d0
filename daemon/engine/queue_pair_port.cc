#include "daemon/engine/queue_pair_port.h"

#include "daemon/engine/early_receives.h"

namespace rdmad::engine {
namespace {

using device::PostResult;
using device::WcStatus;

uint64_t KeyOf(const device::Qp& qp) {
  return reinterpret_cast<uintptr_t>(&qp);
}

uint64_t TotalBytes(std::span<const device::Sge> sges) {
  uint64_t sum = 0;
  for (const device::Sge& sge : sges) sum += sge.length_bytes;
  return sum;
}

WorkQueueReader ReaderOf(const WorkRing& ring) {
  return ring.addr == nullptr ? WorkQueueReader() : WorkQueueReader(ring.addr, ring.slot_count);
}

}  // namespace

ShmQueuePairPort::ShmQueuePairPort(EngineContext& context, const QueuePairPortInit& init)
    : context_(context),
      session_(static_cast<ShmSessionPort&>(*init.session)),
      qp_(*init.qp),
      pd_(init.pd),
      send_cq_(static_cast<ShmCqPort&>(*init.send_cq)),
      recv_cq_(static_cast<ShmCqPort&>(*init.recv_cq)),
      doorbell_index_(init.doorbell_index),
      sends_(ReaderOf(init.send_ring)),
      recvs_(ReaderOf(init.recv_ring)) {
  session_.doorbells().Reserve(doorbell_index_);
  send_cq_user_.port = this;
  recv_cq_user_.port = this;
  events_.token = init.owner_token;
  events_.qpn = qp_.qpn();
}

void ShmQueuePairPort::Activate(device::TimeNs) noexcept {
  session_.doorbells().Insert(doorbell_index_, *this);
  context_.ports_by_qp.Insert(*this, KeyOf(qp_));
  context_.events.AddObject(events_);
  send_cq_.AddUser(send_cq_user_);
  recv_cq_.AddUser(recv_cq_user_);
  qp_.SetReceiveSource(this);
  // A doorbell that was rung before the table knew this port was ignored: look once.
  context_.active.PushBack(*this);
}

void ShmQueuePairPort::Deactivate(device::TimeNs) noexcept {
  qp_.SetReceiveSource(nullptr);
  session_.doorbells().Remove(doorbell_index_);
  context_.ports_by_qp.Remove(*this);
  context_.events.RemoveObject(events_);
  send_cq_user_.Unlink();
  recv_cq_user_.Unlink();
  Unlink();  // from the active list
}

DrainResult ShmQueuePairPort::Drain(uint32_t budget, device::TimeNs now) noexcept {
  if (broken_) return {};
  if (!sends_.Refresh() || !recvs_.Refresh()) {
    Break(now);
    return {};
  }
  const DrainResult recvs = DrainRecvs(budget, now);
  const DrainResult sends = broken_ ? DrainResult{} : DrainSends(budget, now);
  context_.work_requests.Add(recvs.wrs + sends.wrs);
  return {recvs.wrs + sends.wrs, !broken_ && (recvs.more || sends.more)};
}

void ShmQueuePairPort::PostReceives() noexcept {
  if (broken_) return;
  // No time is needed: a device that asks has it.
  const EarlyReceives early =
      PostEarly(recvs_, [this](const device::RecvWr& wr) { return qp_.PostRecv(wr, 0); });
  session_.counters().recv_wrs.Add(early.posted);
  context_.work_requests.Add(early.posted);
  if (early.more && !linked()) context_.active.PushBack(*this);
}

DrainResult ShmQueuePairPort::DrainSends(uint32_t budget, device::TimeNs now) noexcept {
  uint32_t wrs = 0;
  uint64_t bytes = 0;
  bool going = true;
  while (going && wrs < budget) {
    device::SendWr wr{};
    switch (sends_.NextSend(context_.scratch, wr)) {
      case ReadResult::kEmpty:
        going = false;
        break;
      case ReadResult::kCorrupt:
        Break(now);
        going = false;
        break;
      case ReadResult::kMalformed:
        ++wrs;
        session_.counters().malformed_wrs.Add(1);
        going = FailSend(wr.wr_id, WcStatus::kLocQpOpErr, now);
        break;
      case ReadResult::kOk:
        ++wrs;
        bytes += TotalBytes(wr.sges) + wr.inline_bytes;
        if (sends_.ah_handle() != 0) wr.ah = session_.ahs().Find(sends_.ah_handle(), pd_);
        going = PostSend(wr, now);
        break;
    }
  }
  if (wrs == 0) return {};
  sends_.PublishHead();
  session_.counters().send_wrs.Add(wrs);
  session_.counters().send_bytes.Add(bytes);
  return {wrs, sends_.unread_slots() != 0};
}

DrainResult ShmQueuePairPort::DrainRecvs(uint32_t budget, device::TimeNs now) noexcept {
  uint32_t wrs = 0;
  bool going = true;
  while (going && wrs < budget) {
    device::RecvWr wr{};
    switch (recvs_.NextRecv(context_.scratch, wr)) {
      case ReadResult::kEmpty:
        going = false;
        break;
      case ReadResult::kCorrupt:
        Break(now);
        going = false;
        break;
      case ReadResult::kMalformed:
        ++wrs;
        session_.counters().malformed_wrs.Add(1);
        going = FailRecv(wr.wr_id, now);
        break;
      case ReadResult::kOk:
        ++wrs;
        going = PostRecv(wr, now);
        break;
    }
  }
  if (wrs == 0) return {};
  recvs_.PublishHead();
  session_.counters().recv_wrs.Add(wrs);
  return {wrs, recvs_.unread_slots() != 0};
}

bool ShmQueuePairPort::PostSend(const device::SendWr& wr, device::TimeNs now) noexcept {
  switch (qp_.PostSend(wr, now)) {
    case PostResult::kOk:
      return true;
    case PostResult::kQueueFull:
      Break(now);
      return false;
    case PostResult::kTooLong:
      return FailSend(wr.wr_id, WcStatus::kLocLenErr, now);
    case PostResult::kWrongState:
      MoveToError(now);  // where it is taken, and flushed
      [[fallthrough]];
    case PostResult::kTooManySges:
    case PostResult::kBadOpcode:
      return FailSend(wr.wr_id, WcStatus::kLocQpOpErr, now);
  }
  return true;
}

bool ShmQueuePairPort::PostRecv(const device::RecvWr& wr, device::TimeNs now) noexcept {
  const PostResult result = qp_.PostRecv(wr, now);
  if (result == PostResult::kOk) return true;
  if (result != PostResult::kQueueFull) return FailRecv(wr.wr_id, now);
  Break(now);
  return false;
}

// The device knows the order of completions and what is still under way, so the failure goes
// through it, in its turn.
bool ShmQueuePairPort::FailSend(uint64_t wr_id, WcStatus status, device::TimeNs now) noexcept {
  device::SendWr failed{};
  failed.wr_id = wr_id;
  failed.opcode = device::WrOpcode::kSend;
  failed.flags = shm::kWorkSignaled;
  failed.verdict = status;
  if (qp_.PostSend(failed, now) == PostResult::kOk) return true;
  Break(now);
  return false;
}

// The completion is a flush, and an event says why.
bool ShmQueuePairPort::FailRecv(uint64_t wr_id, device::TimeNs now) noexcept {
  MoveToError(now);
  if (qp_.PostRecv({wr_id, {}}, now) != PostResult::kOk) {
    Break(now);
    return false;
  }
  context_.events.ReportQp(events_, device::AsyncEventType::kQpFatal);
  return true;
}

void ShmQueuePairPort::Break(device::TimeNs now) noexcept {
  broken_ = true;
  session_.counters().corrupt_rings.Add(1);
  MoveToError(now);
  context_.events.ReportQp(events_, device::AsyncEventType::kQpFatal);
}

void ShmQueuePairPort::MoveToError(device::TimeNs now) noexcept {
  device::QpAttr attr;
  attr.mask = device::kQpAttrState;
  attr.state = device::QpState::kErr;
  // In RESET there is nothing to flush, and it is refused; kGone needs nothing more.
  static_cast<void>(qp_.Modify(attr, now));
}

void ShmQueuePairPort::OnReset() noexcept {
  sends_.Forget();
  recvs_.Forget();
  broken_ = false;
}

}  // namespace rdmad::engine
