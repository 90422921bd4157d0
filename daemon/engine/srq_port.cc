#include "daemon/engine/srq_port.h"

#include "daemon/engine/early_receives.h"

namespace rdmad::engine {

ShmSrqPort::ShmSrqPort(EngineContext& context, const SrqPortInit& init)
    : context_(context),
      session_(static_cast<ShmSessionPort&>(*init.session)),
      srq_(*init.srq),
      doorbell_index_(init.doorbell_index),
      recvs_(init.ring.addr, init.ring.slot_count) {
  session_.doorbells().Reserve(doorbell_index_);
  events_.token = init.owner_token;
}

void ShmSrqPort::Activate(device::TimeNs) noexcept {
  session_.doorbells().Insert(doorbell_index_, *this);
  context_.events.AddObject(events_);
  srq_.SetReceiveSource(this);
  // A doorbell that was rung before the table knew this port was ignored: look once. At once, so that
  // a limit that is set next counts what was posted before.
  Drain(UINT32_MAX, 0);
}

void ShmSrqPort::Deactivate(device::TimeNs) noexcept {
  srq_.SetReceiveSource(nullptr);
  session_.doorbells().Remove(doorbell_index_);
  context_.events.RemoveObject(events_);
  Unlink();  // from the active list
}

DrainResult ShmSrqPort::Drain(uint32_t budget, device::TimeNs) noexcept {
  if (broken_) return {};
  if (!recvs_.Refresh()) {
    Break("srq: the ring's tail runs away");
    return {};
  }
  uint32_t wrs = 0;
  while (wrs < budget && !broken_) {
    device::RecvWr wr{};
    const ReadResult read = recvs_.NextRecv(context_.scratch, wr);
    if (read == ReadResult::kEmpty) break;
    if (read == ReadResult::kCorrupt) {
      Break("srq: a WR's slots make no sense");
      break;
    }
    ++wrs;
    if (read == ReadResult::kMalformed) {
      session_.counters().malformed_wrs.Add(1);
      Break("srq: a WR is malformed");
    } else if (srq_.PostRecv(wr) != device::PostResult::kOk) {
      Break("srq: more WRs or SGEs than were granted");
    }
  }
  if (wrs == 0) return {};
  recvs_.PublishHead();
  session_.counters().recv_wrs.Add(wrs);
  context_.work_requests.Add(wrs);
  return {wrs, !broken_ && recvs_.unread_slots() != 0};
}

void ShmSrqPort::PostReceives() noexcept {
  if (broken_) return;
  const EarlyReceives early =
      PostEarly(recvs_, [this](const device::RecvWr& wr) { return srq_.PostRecv(wr); });
  session_.counters().recv_wrs.Add(early.posted);
  context_.work_requests.Add(early.posted);
  if (early.more && !linked()) context_.active.PushBack(*this);
}

void ShmSrqPort::Break(const char* what) noexcept {
  broken_ = true;
  session_.counters().corrupt_rings.Add(1);
  session_.MarkCorrupt(what);
}

}  // namespace rdmad::engine
