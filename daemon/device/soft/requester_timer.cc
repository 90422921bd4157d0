// The requester's two clocks: see ack_timing.h.
#include <algorithm>

#include "daemon/device/soft/requester.h"
#include "daemon/device/soft/soft_qp.h"

namespace rdmad::soft {

using device::WcStatus;

void Requester::RestartClocks(TimeNs now) noexcept {
  const TimeNs wait = AckTimeout(qp_.attr.timeout, attempt_);
  deadline_ = wait == kNever ? kNever : now + wait;
  probe_at_ = attempt_ == 0 ? now + round_trip_.ProbeDelay(probes_) : kNever;
}

void Requester::GoBackWithinTimeout(TimeNs now) noexcept {
  const TimeNs deadline = deadline_;
  GoBack(now);
  deadline_ = deadline;
  UpdateTimer();
}

// One timer serves both clocks. It may go off early, since answers only move the deadlines: then it
// is armed again.
void Requester::UpdateTimer() noexcept {
  if (AllAnswered()) {
    if (rnr_until_ == 0) qp_.core.timers.Cancel(qp_.timer);
    return;
  }
  const TimeNs earliest = std::min(deadline_, probe_at_);
  if (earliest < qp_.timer.deadline) qp_.core.timers.Arm(qp_.timer, earliest);
}

void Requester::OnTimer(TimeNs now) noexcept {
  if (rnr_until_ != 0) {
    if (now < rnr_until_) {
      qp_.core.timers.Arm(qp_.timer, rnr_until_);
      return;
    }
    rnr_until_ = 0;
    RestartClocks(now);
    qp_.Wake();
    return;
  }
  if (AllAnswered()) return;
  if (now >= deadline_) {
    Count(qp_.core.counters.timeouts);
    if (retries_left_ == 0) {
      Count(qp_.core.counters.retry_exhausted);
      FailHead(WcStatus::kRetryExcErr, now);
      return;
    }
    --retries_left_;
    ++attempt_;
    gap_seen_ = false;
    (void)NoteCongestion();
    window_.OnSilence();
    GoBack(now);
  } else if (now >= probe_at_) {
    Count(qp_.core.counters.tail_probes);
    ++probes_;
    round_trip_.OnProbe();
    gap_seen_ = false;
    probed_ = true;
    probe_psn_ = una_;
    window_.OnSilence();
    GoBackWithinTimeout(now);
  } else {
    UpdateTimer();
  }
}

}  // namespace rdmad::soft
