#include "daemon/device/soft/soft_srq.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/transport_qp.h"

namespace rdmad::soft {

using device::PostResult;
using device::QpResult;

absl::StatusOr<std::unique_ptr<SoftSrq>> SoftSrq::Create(device::AsyncSink* async, const SoftPd& pd,
                                                         const device::SrqInit& init,
                                                         std::shared_ptr<const void> lease) {
  if (init.max_wr == 0 || init.max_wr > kMaxQueueDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_srq: max_wr=", init.max_wr, " device_max=", kMaxQueueDepth));
  }
  if (init.max_sge > kMaxSge) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_srq: max_sge=", init.max_sge, " device_max=", kMaxSge));
  }
  return std::unique_ptr<SoftSrq>(new SoftSrq(async, pd, init, std::move(lease)));
}

SoftSrq::SoftSrq(device::AsyncSink* async, const SoftPd& pd, const device::SrqInit& init,
                 std::shared_ptr<const void> lease)
    : async_(async),
      pd_id_(pd.id()),
      init_(init),
      lease_(std::move(lease)),
      queue_(init.max_wr, init.max_sge) {}

void SoftSrq::Deactivate(device::TimeNs) noexcept {
  queue_.Clear();
  limit_ = 0;
}

PostResult SoftSrq::PostRecv(const device::RecvWr& wr) noexcept {
  if (wr.sges.size() > init_.max_sge) return PostResult::kTooManySges;
  if (queue_.full()) return PostResult::kQueueFull;
  queue_.Push(wr);
  // Some have got theirs meanwhile, or want none any more.
  while (ActiveNode* const waiter = waiters_.Pop()) {
    if (waiter->qp->OnReceivePosted()) break;
  }
  return PostResult::kOk;
}

QpResult SoftSrq::SetLimit(uint32_t limit) noexcept {
  if (limit > init_.max_wr) return QpResult::kBadValue;
  limit_ = limit;
  return QpResult::kOk;
}

bool SoftSrq::Take(ReceiveWqe* out) noexcept {
  if (queue_.empty() && source_ != nullptr) source_->PostReceives();
  const bool taken = !queue_.empty();
  if (taken) queue_.Pop(out);
  // What is in the ring counts: it was posted.
  while (queue_.size() < limit_ && source_ != nullptr) {
    const auto before = queue_.size();
    source_->PostReceives();
    if (queue_.size() == before) break;
  }
  if (queue_.size() < limit_) {
    limit_ = 0;
    async_->OnAsyncEvent({device::AsyncEventType::kSrqLimitReached, init_.owner_token, 0});
  }
  return taken;
}

}  // namespace rdmad::soft
