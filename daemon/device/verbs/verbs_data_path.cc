#include "daemon/device/verbs/verbs_data_path.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/check.h"
#include "daemon/device/verbs/verbs_cq.h"
#include "daemon/device/verbs/verbs_qp.h"

namespace rdmad::verbs {
namespace {

constexpr device::TimeNs kCoolAfterNs = 100'000;
constexpr device::TimeNs kTakeEventsEveryNs = 2'000;  // a system call each time
constexpr int kPollAtOnce = 32;
constexpr int kPollBudget = 256;  // completions of one CQ per turn
constexpr int kEventBudget = 64;  // of one descriptor per look

// A slot's number: index below, generation above.
constexpr uint32_t kIndexBits = 20;
constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;

// What epoll tells: the context, and in the lowest bit which of its descriptors.
constexpr uintptr_t kAsyncBit = 1;
static_assert(alignof(OpenContext) > kAsyncBit);

void Watch(int epoll_fd, int fd, uintptr_t data) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  // Out of memory: then completions wait for the next one that is polled.
  [[maybe_unused]] const int added = ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

void Unwatch(int epoll_fd, int fd) noexcept {
  [[maybe_unused]] const int gone = ::epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsDataPath>> VerbsDataPath::Create(device::AsyncSink* sink) {
  UniqueFd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_fd.valid()) return absl::ErrnoToStatus(errno, "verbs: epoll_create1");
  return std::unique_ptr<VerbsDataPath>(new VerbsDataPath(sink, std::move(epoll_fd)));
}

VerbsDataPath::VerbsDataPath(device::AsyncSink* sink, UniqueFd epoll_fd)
    : sink_(*sink), epoll_fd_(std::move(epoll_fd)), epoll_number_(epoll_fd_.get()) {}

VerbsDataPath::~VerbsDataPath() {
  RD_CHECK(contexts_.empty(), "contexts leave before their data path");
}

// ---- who is here ----

void VerbsDataPath::AddContext(OpenContext& context) noexcept {
  contexts_.push_back(&context);
  if (context.dead()) return;
  const auto number = reinterpret_cast<uintptr_t>(&context);
  Watch(epoll_number_, context.channel()->fd, number);
  Watch(epoll_number_, context.hw()->async_fd, number | kAsyncBit);
}

void VerbsDataPath::RemoveContext(OpenContext& context) noexcept {
  if (std::erase(contexts_, &context) == 0 || context.dead()) return;
  Unwatch(epoll_number_, context.channel()->fd);
  Unwatch(epoll_number_, context.hw()->async_fd);
}

void VerbsDataPath::Kill(OpenContext& context, device::TimeNs) noexcept {
  if (context.dead()) return;
  if (batch_qp_ != nullptr && &batch_qp_->context() == &context) {
    batch_qp_ = nullptr;  // the sends stand in their QP's queue and flush with it
    batch_count_ = batch_sges_ = 0;
  }
  if (std::find(contexts_.begin(), contexts_.end(), &context) != contexts_.end()) {
    Unwatch(epoll_number_, context.channel()->fd);
    Unwatch(epoll_number_, context.hw()->async_fd);
  }
  context.Die();
  std::erase_if(hot_, [&context](VerbsCq* cq) {
    if (&cq->context() != &context) return false;
    cq->hot = false;
    return true;
  });
  for (const QpSlot& slot : slots_) {
    if (slot.qp != nullptr && &slot.qp->context() == &context) slot.qp->Die();
  }
}

uint32_t VerbsDataPath::AddQp(VerbsQp& qp) noexcept {
  uint32_t index;
  if (free_slots_.empty()) {
    index = static_cast<uint32_t>(slots_.size());
    RD_CHECK(index <= kIndexMask, "no device has as many QPs");
    slots_.emplace_back();
  } else {
    index = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[index].qp = &qp;
  return slots_[index].generation << kIndexBits | index;
}

void VerbsDataPath::RemoveQp(VerbsQp& qp, uint32_t slot) noexcept {
  if (batch_qp_ == &qp) {
    batch_qp_ = nullptr;
    batch_count_ = batch_sges_ = 0;
  }
  QpSlot& entry = slots_[slot & kIndexMask];
  entry.qp = nullptr;
  entry.generation = (entry.generation + 1) & (UINT32_MAX >> kIndexBits);
  free_slots_.push_back(slot & kIndexMask);
}

VerbsQp* VerbsDataPath::Find(uint64_t wr_id) const noexcept {
  const auto slot = static_cast<uint32_t>(wr_id >> 32);
  const uint32_t index = slot & kIndexMask;
  if (index >= slots_.size() || slots_[index].generation != slot >> kIndexBits) return nullptr;
  return slots_[index].qp;
}

void VerbsDataPath::AddCq(VerbsCq& cq) noexcept {
  cq.active = true;
  // Cold and armed from the start.
  if (!cq.context().dead()) ibv_req_notify_cq(cq.hw(), 0);
}

void VerbsDataPath::RemoveCq(VerbsCq& cq) noexcept {
  cq.active = false;
  if (std::exchange(cq.hot, false)) std::erase(hot_, &cq);
}

void VerbsDataPath::Heat(VerbsCq& cq, device::TimeNs now) noexcept {
  cq.last_completion = now;
  if (cq.hot || !cq.active || cq.context().dead()) return;
  cq.hot = true;
  hot_.push_back(&cq);
}

// ---- posting ----

void VerbsDataPath::AppendSend(VerbsQp& qp, uint64_t wr_id, const device::SendWr& wr,
                               ibv_wr_opcode opcode, unsigned int flags) noexcept {
  if (batch_qp_ != &qp || batch_count_ == kMaxBatch) FlushSends();
  batch_qp_ = &qp;
  ibv_send_wr& out = batch_wrs_[batch_count_];
  out = {};
  out.wr_id = wr_id;
  out.sg_list = &batch_sge_pool_[batch_sges_];
  out.opcode = opcode;
  out.send_flags = flags;
  if (wr.inline_bytes != 0) {
    out.send_flags |= IBV_SEND_INLINE;
    for (const std::span<const std::byte> piece : wr.inline_data.pieces) {
      if (piece.empty()) continue;
      batch_sge_pool_[batch_sges_++] = {reinterpret_cast<uintptr_t>(piece.data()),
                                        static_cast<uint32_t>(piece.size()), 0};
      ++out.num_sge;
    }
  } else {
    for (const device::Sge& sge : wr.sges) {
      batch_sge_pool_[batch_sges_++] = {sge.addr, sge.length_bytes, sge.lkey};
    }
    out.num_sge = static_cast<int>(wr.sges.size());
  }
  if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV) {
    out.invalidate_rkey = wr.imm_be;
  } else {
    out.imm_data = wr.imm_be;
  }
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    out.wr.atomic = {wr.remote_addr, wr.compare_add, wr.swap, wr.rkey};
  } else {
    out.wr.rdma = {wr.remote_addr, wr.rkey};
  }
  if (batch_count_ != 0) batch_wrs_[batch_count_ - 1].next = &out;
  ++batch_count_;
}

void VerbsDataPath::FlushSends() noexcept {
  VerbsQp* const qp = std::exchange(batch_qp_, nullptr);
  if (std::exchange(batch_count_, 0) == 0) return;
  batch_sges_ = 0;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp->hw(), batch_wrs_.data(), &bad) == 0) return;
  qp->OnSendRefused((bad != nullptr ? bad : batch_wrs_.data())->wr_id);
}

// ---- a turn ----

int VerbsDataPath::DoWork(device::TimeNs now) noexcept {
  FlushSends();
  int work = 0;
  if (!contexts_.empty() && now - events_taken_at_ >= kTakeEventsEveryNs) work += TakeEvents(now);
  return work + PollHot(now);
}

device::TimeNs VerbsDataPath::NextDeadline(device::TimeNs now) noexcept {
  bool more = false;
  for (size_t i = 0; i < hot_.size();) {
    if (Cool(*hot_[i], now)) {
      hot_[i]->hot = false;
      hot_[i] = hot_.back();
      hot_.pop_back();
    } else {
      more = true;
      ++i;
    }
  }
  return more ? now : device::kNever;
}

int VerbsDataPath::PollHot(device::TimeNs now) noexcept {
  int work = 0;
  for (size_t i = 0; i < hot_.size();) {
    VerbsCq& cq = *hot_[i];
    const int polled = PollCq(cq, now);
    work += polled;
    if (polled == 0 && now - cq.last_completion > kCoolAfterNs && Cool(cq, now)) {
      cq.hot = false;
      hot_[i] = hot_.back();
      hot_.pop_back();
    } else {
      ++i;
    }
  }
  return work;
}

int VerbsDataPath::PollCq(VerbsCq& cq, device::TimeNs now) noexcept {
  ibv_wc wcs[kPollAtOnce];
  int total = 0;
  while (total < kPollBudget) {
    const int count = ibv_poll_cq(cq.hw(), kPollAtOnce, wcs);
    if (count <= 0) break;  // below 0: the CQ is broken, of which an async event tells
    for (int i = 0; i < count; ++i) {
      if (VerbsQp* const qp = Find(wcs[i].wr_id)) qp->OnCompletion(wcs[i]);
    }
    total += count;
    if (count < kPollAtOnce) break;
  }
  if (total != 0) cq.last_completion = now;
  return total;
}

bool VerbsDataPath::Cool(VerbsCq& cq, device::TimeNs now) noexcept {
  ibv_req_notify_cq(cq.hw(), 0);
  return PollCq(cq, now) == 0;
}

// ---- events ----

int VerbsDataPath::TakeEvents(device::TimeNs now) noexcept {
  events_taken_at_ = now;
  epoll_event events[16];
  const int count = ::epoll_wait(epoll_number_, events, 16, 0);
  int work = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[i].data.u64;
    OpenContext& context = *reinterpret_cast<OpenContext*>(data & ~uint64_t{kAsyncBit});
    if (context.dead()) continue;  // by an event of this very round
    work += (data & kAsyncBit) != 0 ? TakeAsyncEvents(context, now)
                                    : TakeCompletionEvents(context, now);
  }
  return work;
}

int VerbsDataPath::TakeCompletionEvents(OpenContext& context, device::TimeNs now) noexcept {
  int count = 0;
  while (count < kEventBudget) {
    ibv_cq* hw = nullptr;
    void* cq_context = nullptr;
    if (ibv_get_cq_event(context.channel(), &hw, &cq_context) != 0) break;
    // Alive until the event is acknowledged: destroying it waits for that.
    Heat(*static_cast<VerbsCq*>(cq_context), now);
    ibv_ack_cq_events(hw, 1);
    ++count;
  }
  return count;
}

int VerbsDataPath::TakeAsyncEvents(OpenContext& context, device::TimeNs now) noexcept {
  int count = 0;
  bool fatal = false;
  while (count < kEventBudget) {
    ibv_async_event event;
    if (ibv_get_async_event(context.hw(), &event) != 0) break;
    ++count;
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_COMM_EST:
      case IBV_EVENT_SQ_DRAINED:
      case IBV_EVENT_QP_LAST_WQE_REACHED: {
        // Alive until the event is acknowledged.
        const auto& qp = *static_cast<VerbsQp*>(event.element.qp->qp_context);
        sink_.OnAsyncEvent(
            {static_cast<device::AsyncEventType>(event.event_type), qp.owner_token(), qp.qpn()});
        break;
      }
      case IBV_EVENT_CQ_ERR:
        for (const QpSlot& slot : slots_) {
          if (slot.qp == nullptr || &slot.qp->context() != &context) continue;
          if (slot.qp->send_cq().hw() != event.element.cq &&
              slot.qp->recv_cq().hw() != event.element.cq) {
            continue;
          }
          sink_.OnAsyncEvent(
              {device::AsyncEventType::kQpFatal, slot.qp->owner_token(), slot.qp->qpn()});
        }
        break;
      case IBV_EVENT_DEVICE_FATAL:
        fatal = true;
        break;
      default:
        break;  // ports and GIDs: control listens for itself
    }
    ibv_ack_async_event(&event);
  }
  if (fatal) Kill(context, now);
  return count;
}

}  // namespace rdmad::verbs
