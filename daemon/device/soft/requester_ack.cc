// What the requester makes of answers: acknowledgements, NAKs and responses.
#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/device/soft/requester.h"
#include "daemon/device/soft/soft_qp.h"

namespace rdmad::soft {

using device::WcStatus;
using wire::Psn;

namespace {

constexpr uint8_t kRnrRetryForEver = 7;

}  // namespace

void Requester::OnResponse(const wire::PacketView& packet, TimeNs now) noexcept {
  if (!IsInFlight(packet.psn)) {
    Count(qp_.core.counters.duplicate_responses);
    return;
  }
  switch (packet.info().operation) {
    case wire::Operation::kAck:
      OnAck(packet, now);
      break;
    case wire::Operation::kReadResponse:
      OnReadResponse(packet, now);
      break;
    case wire::Operation::kAtomicAck:
      OnAtomicAck(packet, now);
      break;
    case wire::Operation::kSend:
    case wire::Operation::kWrite:
    case wire::Operation::kReadRequest:
    case wire::Operation::kAtomicRequest:
    case wire::Operation::kCongestion:
      Count(qp_.core.counters.drop_bad_response);
      break;
  }
}

bool Requester::IsInFlight(Psn psn) const noexcept {
  return wire::ForwardDistance(una_, psn) < wire::ForwardDistance(una_, max_psn_);
}

// Everything before `end` is answered, as far as an ACK can answer it: completes WRs up to there.
// False if a READ or atomic stands in between whose response has not come.
bool Requester::AdvanceTo(Psn end) noexcept {
  while (wire::IsBefore(una_, end)) {
    const SendWqe& wqe = queue_[queue_.head()];
    if (wqe.wants_response()) return false;
    const Psn wqe_end = wqe.end_psn();
    const Psn stop = wire::IsBefore(wqe_end, end) ? wqe_end : end;
    const auto first_packet = static_cast<uint32_t>(una_ - wqe.first_psn);
    acked_cost_ += CostOf(wqe, first_packet, first_packet + static_cast<uint32_t>(stop - una_));
    una_ = stop;
    if (una_ == wqe_end) CompleteHead(WcStatus::kSuccess);
  }
  return true;
}

// The PSN at `una_`, of a READ or atomic, has its response.
void Requester::AdvanceOne() noexcept {
  const SendWqe& wqe = queue_[queue_.head()];
  const auto packet = static_cast<uint32_t>(una_ - wqe.first_psn);
  acked_cost_ += CostOf(wqe, packet, packet + 1);
  ++una_;
  if (una_ == wqe.end_psn()) CompleteHead(WcStatus::kSuccess);
}

void Requester::OnAck(const wire::PacketView& packet, TimeNs now) noexcept {
  const Psn old_una = una_;
  const uint64_t old_cost = acked_cost_;
  const wire::AckKind kind = wire::AckKindOf(packet.aeth.syndrome);
  const uint8_t code = wire::AckCodeOf(packet.aeth.syndrome);
  // Any NAK says that everything before its PSN has arrived.
  const bool reached = AdvanceTo(kind == wire::AckKind::kAck ? packet.psn + 1 : packet.psn);
  const bool progress = una_ != old_una;
  if (progress) OnProgress(old_cost, now);
  switch (kind) {
    case wire::AckKind::kAck:
      Count(qp_.core.counters.rx_acks);
      if (!reached) OnGap(now);
      break;
    case wire::AckKind::kRnrNak:
      Count(qp_.core.counters.rx_rnr_nak);
      if (!reached) {
        OnGap(now);
      } else if (rnr_until_ == 0) {  // else a copy of the NAK for which we wait
        OnNotReady(code, now);
      }
      break;
    case wire::AckKind::kNak:
      if (reached) {
        OnNak(code, progress, now);
      } else {
        OnGap(now);
      }
      break;
    case wire::AckKind::kReserved:
      Count(qp_.core.counters.drop_bad_response);
      break;
  }
}

// A NAK for the PSN at `una_`.
void Requester::OnNak(uint8_t code, bool progress, TimeNs now) noexcept {
  WcStatus status = WcStatus::kRemOpErr;
  switch (static_cast<wire::NakCode>(code)) {
    case wire::NakCode::kPsnSequenceError:
      OnSequenceNak(progress, now);
      return;
    case wire::NakCode::kInvalidRequest:
    case wire::NakCode::kInvalidRdRequest:
      status = WcStatus::kRemInvReqErr;
      break;
    case wire::NakCode::kRemoteAccessError:
      status = WcStatus::kRemAccessErr;
      break;
    case wire::NakCode::kRemoteOperationalError:
      break;
    default:
      Count(qp_.core.counters.drop_bad_response);
      return;
  }
  Count(qp_.core.counters.rx_nak_fatal);
  FailHead(status, now);
}

// The first for a PSN uses up a retry, as the specification has it. Those that follow come of
// packets that were repeated or lost again on the way, by a peer that is there: they cost none, but
// do not put the timeout off.
void Requester::OnSequenceNak(bool progress, TimeNs now) noexcept {
  Count(qp_.core.counters.rx_nak_sequence);
  const bool told_before = !progress && went_back_ && went_back_psn_ == una_;
  // So soon it cannot tell of what was sent since: the packet is on its way already.
  if (told_before && round_trip_.known() && now - went_back_at_ < round_trip_.smoothed() / 2) {
    return Count(qp_.core.counters.duplicate_responses);
  }
  if (!progress && !told_before) {
    if (retries_left_ == 0) {
      Count(qp_.core.counters.retry_exhausted);
      return FailHead(WcStatus::kRetryExcErr, now);
    }
    --retries_left_;
  }
  (void)NoteCongestion();
  told_before ? GoBackWithinTimeout(now) : GoBack(now);
}

// The receiver has no buffer for the message at the head; waits as long as it asks for.
void Requester::OnNotReady(uint8_t timer_code, TimeNs now) noexcept {
  if (qp_.attr.rnr_retry != kRnrRetryForEver) {
    if (rnr_retries_left_ == 0) {
      Count(qp_.core.counters.rnr_retry_exhausted);
      FailHead(WcStatus::kRnrRetryExcErr, now);
      return;
    }
    --rnr_retries_left_;
  }
  GoBack(now);
  // The peer has answered: what the transport timeout counts begins anew. RNR waits use up no
  // retries.
  retries_left_ = qp_.attr.retry_count;
  attempt_ = probes_ = 0;
  deadline_ = probe_at_ = kNever;
  rnr_until_ = now + wire::RnrTimer(timer_code).count();
  qp_.core.timers.Arm(qp_.timer, rnr_until_);
}

void Requester::EndRnrWait() noexcept {
  if (rnr_until_ == 0) return;
  rnr_until_ = 0;
  qp_.core.timers.Cancel(qp_.timer);
  qp_.Wake();
}

// By way of the timer, which knows the time: packets may be in flight, and their clocks start anew.
// The receive that was posted may be another sender's by then (of an SRQ), so the retry that the
// wait has cost is given back: rnr_retry says how many whole waits there are.
bool Requester::CutRnrWaitShort() noexcept {
  constexpr TimeNs kLongAgo = -1;
  if (rnr_until_ == 0) return false;
  if (rnr_until_ != kLongAgo && qp_.attr.rnr_retry != kRnrRetryForEver) {
    rnr_retries_left_ = std::min<uint8_t>(rnr_retries_left_ + 1, qp_.attr.rnr_retry);
  }
  rnr_until_ = kLongAgo;
  qp_.core.timers.Arm(qp_.timer, kLongAgo);
  return true;
}

void Requester::OnReadResponse(const wire::PacketView& packet, TimeNs now) noexcept {
  const Psn old_una = una_;
  const uint64_t old_cost = acked_cost_;
  const bool reached = AdvanceTo(packet.psn);
  WcStatus status = WcStatus::kSuccess;
  bool answers = false;
  if (reached) {
    answers = queue_[queue_.head()].is_read();
    if (answers) {
      status = PlaceResponse(packet);
      if (status == WcStatus::kSuccess) AdvanceOne();
    }
  }
  if (una_ != old_una) OnProgress(old_cost, now);
  if (status != WcStatus::kSuccess) {
    FailHead(status, now);
  } else if (!reached) {
    OnGap(now);
  } else if (!answers) {
    Count(qp_.core.counters.drop_bad_response);
  }
}

// Puts the payload of the response for `una_` where its READ wants it.
WcStatus Requester::PlaceResponse(const wire::PacketView& packet) noexcept {
  const uint32_t index = queue_.head();
  const SendWqe& wqe = queue_[index];
  const uint64_t offset = uint64_t{static_cast<uint32_t>(una_ - wqe.first_psn)} * qp_.mtu_bytes;
  const uint64_t expected = std::min<uint64_t>(qp_.mtu_bytes, wqe.length_bytes - offset);
  if (packet.payload.size() != expected) return WcStatus::kBadRespErr;
  if (expected == 0) return WcStatus::kSuccess;
  const SgeList target = LocalList(index, device::kAccessLocalWrite);
  if (!response_cursor_valid_ || response_psn_ != una_ || offset == 0) {
    response_cursor_.Seek(target, offset);
  }
  response_cursor_valid_ = true;
  response_psn_ = una_ + 1;
  const auto* from = reinterpret_cast<const std::byte*>(packet.payload.data());
  for (size_t left = packet.payload.size(); left > 0;) {
    const std::span<std::byte> to = response_cursor_.Next(target, qp_.core.mrs, left);
    if (to.empty()) return WcStatus::kLocProtErr;
    std::memcpy(to.data(), from, to.size());
    from += to.size();
    left -= to.size();
  }
  return WcStatus::kSuccess;
}

void Requester::OnAtomicAck(const wire::PacketView& packet, TimeNs now) noexcept {
  const Psn old_una = una_;
  const uint64_t old_cost = acked_cost_;
  const bool reached = AdvanceTo(packet.psn);
  bool answers = false;
  bool placed = false;
  if (reached) {
    const uint32_t index = queue_.head();
    answers = queue_[index].is_atomic();
    if (answers) {
      const device::Sge value{.addr = reinterpret_cast<uintptr_t>(&packet.atomic_original),
                              .length_bytes = sizeof(packet.atomic_original),
                              .lkey = 0};
      const SgeList source{{&value, 1}, 0, 0, true};
      SgeCursor from;
      SgeCursor to;
      placed = CopyBetween(source, from, LocalList(index, device::kAccessLocalWrite), to,
                           value.length_bytes, true, qp_.core.mrs) == CopyResult::kOk;
      if (placed) AdvanceOne();
    }
  }
  if (una_ != old_una) OnProgress(old_cost, now);
  if (!reached) {
    OnGap(now);
  } else if (!answers) {
    Count(qp_.core.counters.drop_bad_response);
  } else if (!placed) {
    FailHead(WcStatus::kLocProtErr, now);
  }
}

// The peer has answered something new.
void Requester::OnProgress(uint64_t old_acked_cost, TimeNs now) noexcept {
  const uint64_t in_flight = next_.cost > old_acked_cost ? next_.cost - old_acked_cost : 0;
  window_.OnAcked(acked_cost_ - old_acked_cost, in_flight);
  // An answer to what was sent before we went back.
  if (wire::IsAfter(una_, next_.psn)) SeekToUna();
  while (read_head_ != next_.read_tail &&
         !wire::IsAfter(read_ends_[read_head_ % kMaxRdAtomic], una_)) {
    ++read_head_;
  }
  while (bound_head_ != next_.bound_tail &&
         !wire::IsAfter(read_bounds_[bound_head_ % kMaxRdAtomic], una_)) {
    ++bound_head_;
  }
  // An answer to more than the probe was only late; one to the probe alone tells of a loss.
  if (std::exchange(probed_, false) && una_ == probe_psn_ + 1 && !AllAnswered()) {
    (void)NoteCongestion();
  }
  if (wire::IsBefore(recovery_psn_, una_)) recovery_psn_ = una_;
  if (sampling_ && wire::IsAfter(una_, sample_psn_)) {
    sampling_ = false;
    round_trip_.OnSample(now - sample_sent_at_);
  }
  retries_left_ = qp_.attr.retry_count;
  rnr_retries_left_ = qp_.attr.rnr_retry;
  attempt_ = probes_ = 0;
  if (rnr_until_ != 0) EndRnrWait();
  RestartClocks(now);
  UpdateTimer();
  qp_.Wake();
}

// A response to something later says that those for `una_` were lost. Those that are still on their
// way say it again: once is enough, and a repeated loss is the timer's.
void Requester::OnGap(TimeNs now) noexcept {
  if (gap_seen_ && gap_psn_ == una_) {
    Count(qp_.core.counters.duplicate_responses);
    return;
  }
  gap_seen_ = true;
  gap_psn_ = una_;
  (void)NoteCongestion();
  GoBack(now);
}

bool Requester::OnCongestion() noexcept {
  return IsSending() && !AllAnswered() && NoteCongestion();
}

// Shrinks the window, once for all losses and marks of one round trip.
bool Requester::NoteCongestion() noexcept {
  if (wire::IsBefore(una_, recovery_psn_)) return false;
  recovery_psn_ = max_psn_;
  window_.OnCongestion();
  return true;
}

void Requester::GoBack(TimeNs now) noexcept {
  Count(qp_.core.counters.retransmit_rounds);
  went_back_ = true;
  went_back_psn_ = una_;
  went_back_at_ = now;
  SeekToUna();
  sampling_ = false;  // an answer could be to either copy
  RestartClocks(now);
  UpdateTimer();
  qp_.Wake();
}

void Requester::SeekToUna() noexcept {
  next_.index = queue_.head();
  next_.psn = una_;
  next_.cost = next_.last_ack_cost = acked_cost_;
  next_.read_tail = read_head_;
  next_.packet = 0;
  next_.cursor = {};
  if (queue_.empty()) return;
  const SendWqe& wqe = queue_[next_.index];
  next_.packet = static_cast<uint32_t>(una_ - wqe.first_psn);
  if (next_.packet > 0 && !wqe.wants_response()) {
    next_.cursor.Seek(LocalList(next_.index, 0), uint64_t{next_.packet} * qp_.mtu_bytes);
  }
}

}  // namespace rdmad::soft
