#include "daemon/device/verbs/verbs_srq.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_qp.h"
#include "daemon/device/verbs/wr_number.h"
#include "proto/shm/work_queue.h"

namespace rdmad::verbs {

using device::PostResult;
using device::QpResult;

absl::StatusOr<std::unique_ptr<VerbsSrq>> VerbsSrq::Create(std::shared_ptr<OpenContext> context,
                                                           ibv_pd* pd,
                                                           const device::SrqInit& init) {
  RD_RETURN_IF_ERROR(context->Check("create_srq"));
  const device::DeviceAttr& attr = context->attr();
  if (attr.max_srq == 0) {
    return absl::UnimplementedError(absl::StrCat("create_srq: device ", context->device_name(),
                                                 " has no shared receive queues"));
  }
  if (init.max_wr == 0 || init.max_wr > attr.max_srq_wr) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_srq: max_wr=", init.max_wr, " device_max=", attr.max_srq_wr));
  }
  if (init.max_sge > attr.max_srq_sge) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_srq: max_sge=", init.max_sge, " device_max=", attr.max_srq_sge));
  }
  ibv_srq_init_attr hw_init{};
  hw_init.attr.max_wr = init.max_wr;
  hw_init.attr.max_sge = std::max(init.max_sge, 1u);
  ibv_srq* const hw = ibv_create_srq(pd, &hw_init);
  if (hw == nullptr) return context->Error("create_srq", errno);
  std::unique_ptr<VerbsSrq> srq(new VerbsSrq(std::move(context), init,
                                             std::min(hw_init.attr.max_wr, shm::kMaxQueueDepth),
                                             std::min(hw_init.attr.max_sge, shm::kMaxSge)));
  srq->hw_ = hw;
  hw->srq_context = srq.get();
  srq->context_->Add(HardwareKind::kSrq, srq.get());
  return srq;
}

VerbsSrq::VerbsSrq(std::shared_ptr<OpenContext> context, const device::SrqInit& init,
                   uint32_t max_wr, uint32_t max_sge)
    : context_(std::move(context)),
      owner_token_(init.owner_token),
      max_wr_(max_wr),
      max_sge_(max_sge),
      mask_(2 * std::bit_ceil(max_wr) - 1),
      entries_(std::make_unique<Entry[]>(size_t{mask_} + 1)) {}

VerbsSrq::~VerbsSrq() {
  RD_CHECK(!active_ && qps_.empty(), "the engine lets go of an SRQ before control frees it");
  CloseHardware();
  context_->Remove(HardwareKind::kSrq, this);
}

void VerbsSrq::CloseHardware() noexcept {
  if (hw_ != nullptr) ibv_destroy_srq(std::exchange(hw_, nullptr));
}

void VerbsSrq::Activate(device::TimeNs) noexcept {
  slot_ = context_->path().AddSrq(*this);
  active_ = true;
}

void VerbsSrq::Deactivate(device::TimeNs) noexcept {
  context_->path().RemoveSrq(*this, slot_);
  active_ = false;
}

void VerbsSrq::AddQp(VerbsQp& qp) {
  qps_[qp.qpn()] = &qp;
}

void VerbsSrq::RemoveQp(const VerbsQp& qp) {
  qps_.erase(qp.qpn());
}

PostResult VerbsSrq::PostRecv(const device::RecvWr& wr) noexcept {
  if (wr.sges.size() > max_sge_) return PostResult::kTooManySges;
  if (context_->dead() || broken_) return PostResult::kOk;
  if (taken_ > mask_) return PostResult::kQueueFull;
  while (entries_[next_ & mask_].taken) ++next_;
  const uint32_t position = next_ & kPositionMask;
  entries_[next_++ & mask_] = {wr.wr_id, position, true};
  ++taken_;
  context_->path().AppendRecv(*this, MakeWrNumber(slot_, WrKind::kSrqRecv, position), wr.sges);
  return PostResult::kOk;
}

void VerbsSrq::OnRecvsRefused(const ibv_recv_wr& refused) noexcept {
  for (const ibv_recv_wr* wr = &refused; wr != nullptr; wr = wr->next) {
    entries_[PositionOf(wr->wr_id) & mask_].taken = false;
    --taken_;
  }
  broken_ = true;
  context_->path().sink().OnAsyncEvent({device::AsyncEventType::kSrqErr, owner_token_, 0});
}

void VerbsSrq::OnCompletion(uint32_t position, const ibv_wc& wc) noexcept {
  Entry& entry = entries_[position & mask_];
  if (!entry.taken || entry.position != position) return;  // a driver at fault
  entry.taken = false;
  --taken_;
  const auto qp = qps_.find(wc.qp_num);
  if (qp != qps_.end()) qp->second->OnSrqRecvDone(entry.wr_id, wc);
}

QpResult VerbsSrq::SetLimit(uint32_t limit) noexcept {
  if (context_->dead()) return QpResult::kGone;
  if (limit > max_wr_) return QpResult::kBadValue;
  context_->path().FlushRecvs();
  ibv_srq_attr attr{};
  attr.srq_limit = limit;
  // Before, because the event may come at once.
  const uint32_t before = limit_.exchange(limit, std::memory_order_relaxed);
  const int error = ibv_modify_srq(hw_, &attr, IBV_SRQ_LIMIT);
  if (error == 0) return QpResult::kOk;
  limit_.store(before, std::memory_order_relaxed);
  return error == EIO || error == ENODEV ? QpResult::kGone : QpResult::kBadValue;
}

}  // namespace rdmad::verbs
