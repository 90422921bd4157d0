#include "daemon/device/verbs/verbs_data_path.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/check.h"
#include "daemon/device/verbs/verbs_ah.h"
#include "daemon/device/verbs/verbs_cq.h"
#include "daemon/device/verbs/verbs_mw.h"
#include "daemon/device/verbs/verbs_qp.h"
#include "daemon/device/verbs/verbs_srq.h"

namespace rdmad::verbs {
namespace {

constexpr device::TimeNs kCoolAfterNs = 100'000;
constexpr device::TimeNs kTakeEventsEveryNs = 2'000;  // a system call each time
constexpr int kPollAtOnce = 32;
constexpr int kPollBudget = 256;  // completions of one CQ per turn
constexpr int kEventBudget = 64;  // of one descriptor per look

// What epoll tells: an alarm, or the context and in the lowest bit which of its descriptors.
constexpr uint64_t kAlarm = 0;
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

absl::StatusOr<std::unique_ptr<VerbsDataPath>> VerbsDataPath::Create(device::AsyncSink* sink,
                                                                     uint32_t engine) {
  UniqueFd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd alarm_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kAlarm;
  if (!epoll_fd.valid() || !alarm_fd.valid() ||
      ::epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, alarm_fd.get(), &event) != 0) {
    return absl::ErrnoToStatus(errno, "verbs: epoll_create1, eventfd");
  }
  return std::unique_ptr<VerbsDataPath>(
      new VerbsDataPath(sink, engine, std::move(epoll_fd), std::move(alarm_fd)));
}

VerbsDataPath::VerbsDataPath(device::AsyncSink* sink, uint32_t engine, UniqueFd epoll_fd,
                             UniqueFd alarm_fd)
    : sink_(*sink),
      engine_(engine),
      epoll_fd_(std::move(epoll_fd)),
      alarm_fd_(std::move(alarm_fd)),
      epoll_number_(epoll_fd_.get()) {}

VerbsDataPath::~VerbsDataPath() {
  RD_CHECK(contexts_.empty(), "contexts leave before their data path");
}

// ---- who is here ----

void VerbsDataPath::AddContext(OpenContext& context) noexcept {
  contexts_.push_back(&context);
  if (context.dead()) return;
  const auto number = reinterpret_cast<uintptr_t>(&context);
  Watch(epoll_number_, context.channel()->fd, number);
  if (context.first()) Watch(epoll_number_, context.hw()->async_fd, number | kAsyncBit);
}

void VerbsDataPath::RemoveContext(OpenContext& context) noexcept {
  if (std::erase(contexts_, &context) != 0 && !context.dead()) UnwatchContext(context);
  if (contexts_.empty()) TakeAlarm();  // nobody looks any more, and it would keep the engine awake
}

void VerbsDataPath::UnwatchContext(const OpenContext& context) noexcept {
  Unwatch(epoll_number_, context.channel()->fd);
  if (context.first()) Unwatch(epoll_number_, context.hw()->async_fd);
}

void VerbsDataPath::Kill(OpenContext& context, device::TimeNs) noexcept {
  if (context.dead()) return;
  if (batch_qp_ != nullptr && &batch_qp_->context() == &context) {
    batch_qp_ = nullptr;  // the sends stand in their QP's queue and flush with it
    batch_count_ = batch_sges_ = 0;
  }
  if ((recv_qp_ != nullptr && &recv_qp_->context() == &context) ||
      (recv_srq_ != nullptr && &recv_srq_->context() == &context)) {
    ForgetRecvs();
  }
  if (std::find(contexts_.begin(), contexts_.end(), &context) != contexts_.end()) {
    UnwatchContext(context);
  }
  context.Die();
  std::erase_if(hot_, [&context](VerbsCq* cq) {
    if (&cq->context() != &context) return false;
    cq->hot = false;
    return true;
  });
  qps_.ForEach([&context](VerbsQp& qp) {
    if (&qp.context() == &context) qp.Die();
  });
}

void VerbsDataPath::RemoveQp(VerbsQp& qp, uint32_t slot) noexcept {
  if (batch_qp_ == &qp) {
    batch_qp_ = nullptr;
    batch_count_ = batch_sges_ = 0;
  }
  DropRecvs(qp);
  qps_.Remove(slot);
}

void VerbsDataPath::RemoveSrq(const VerbsSrq& srq, uint32_t slot) noexcept {
  if (recv_srq_ == &srq) ForgetRecvs();
  srqs_.Remove(slot);
}

void VerbsDataPath::NoteBindsTo(const OpenContext& context, uint32_t lkey) noexcept {
  qps_.ForEach([&](VerbsQp& qp) {
    if (&qp.context() == &context) qp.NoteBindsUnderWay(lkey);
  });
}

void VerbsDataPath::AddCq(VerbsCq& cq) noexcept {
  cq.active = true;
  cq.place = cqs_.size();
  cqs_.push_back(&cq);
  // Cold and armed from the start.
  if (!cq.context().dead()) ibv_req_notify_cq(cq.hw(), 0);
}

void VerbsDataPath::RemoveCq(VerbsCq& cq) noexcept {
  cq.active = false;
  cqs_[cq.place] = cqs_.back();
  cqs_[cq.place]->place = cq.place;
  cqs_.pop_back();
  if (std::exchange(cq.hot, false)) std::erase(hot_, &cq);
}

void VerbsDataPath::Heat(VerbsCq& cq, device::TimeNs now) noexcept {
  cq.last_completion = now;
  if (cq.hot || !cq.active || cq.context().dead()) return;
  cq.hot = true;
  hot_.push_back(&cq);
}

void VerbsDataPath::Drain(VerbsCq& cq, device::TimeNs now) noexcept {
  if (cq.active && !cq.context().dead()) PollCq(cq, now);
}

// ---- posting ----

void VerbsDataPath::AppendSend(VerbsQp& qp, uint64_t number, const device::SendWr& wr,
                               ibv_wr_opcode opcode, unsigned int flags) noexcept {
  if (batch_qp_ != &qp || batch_count_ == kMaxBatch) FlushSends();
  batch_qp_ = &qp;
  ibv_send_wr& out = batch_wrs_[batch_count_];
  out = {};
  out.wr_id = number;
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
  switch (opcode) {
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_LOCAL_INV:
      out.invalidate_rkey = wr.imm_be;
      break;
    case IBV_WR_BIND_MW: {
      WindowTable& windows = qp.context().windows();
      out.bind_mw = {windows.FindWindow(wr.rkey)->hw(),
                     wr.rkey,
                     {windows.FindRegion(wr.bind_lkey), wr.remote_addr, wr.compare_add,
                      static_cast<unsigned int>(wr.swap)}};
      break;
    }
    default:
      out.imm_data = wr.imm_be;
  }
  if (qp.type() == device::QpType::kUd) {
    out.wr.ud = {static_cast<const VerbsAh*>(wr.ah)->hw(), wr.remote_qpn, wr.remote_qkey};
  } else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    out.wr.atomic = {wr.remote_addr, wr.compare_add, wr.swap, wr.rkey};
  } else {
    out.wr.rdma = {wr.remote_addr, wr.rkey};
  }
  if (batch_count_ != 0) batch_wrs_[batch_count_ - 1].next = &out;
  ++batch_count_;
}

bool VerbsDataPath::SignalLast(const VerbsQp& qp) noexcept {
  if (batch_qp_ != &qp || batch_count_ == 0) return false;
  batch_wrs_[batch_count_ - 1].send_flags |= IBV_SEND_SIGNALED;
  return true;
}

void VerbsDataPath::FlushSends() noexcept {
  FlushRecvs();
  VerbsQp* const qp = std::exchange(batch_qp_, nullptr);
  if (std::exchange(batch_count_, 0) == 0) return;
  batch_sges_ = 0;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp->hw(), batch_wrs_.data(), &bad) == 0) return;
  qp->OnSendRefused(bad != nullptr ? *bad : batch_wrs_.front());
}

void VerbsDataPath::AppendRecv(VerbsQp& qp, uint64_t number,
                               std::span<const device::Sge> sges) noexcept {
  if (recv_qp_ != &qp || recvs_.full()) FlushRecvs();
  recv_qp_ = &qp;
  recvs_.Append(number, sges);
}

void VerbsDataPath::AppendRecv(VerbsSrq& srq, uint64_t number,
                               std::span<const device::Sge> sges) noexcept {
  if (recv_srq_ != &srq || recvs_.full()) FlushRecvs();
  recv_srq_ = &srq;
  recvs_.Append(number, sges);
}

void VerbsDataPath::FlushRecvs() noexcept {
  if (recvs_.count() == 0) return;
  VerbsQp* const qp = std::exchange(recv_qp_, nullptr);
  VerbsSrq* const srq = std::exchange(recv_srq_, nullptr);
  ibv_recv_wr* const first = recvs_.Take();
  ibv_recv_wr* bad = nullptr;
  const int error = qp != nullptr ? ibv_post_recv(qp->hw(), first, &bad)
                                  : ibv_post_srq_recv(srq->hw(), first, &bad);
  if (error == 0) return;
  const ibv_recv_wr& refused = bad != nullptr ? *bad : *first;
  qp != nullptr ? qp->OnRecvsRefused(refused) : srq->OnRecvsRefused(refused);
}

uint32_t VerbsDataPath::DropRecvs(const VerbsQp& qp) noexcept {
  if (recv_qp_ != &qp) return 0;
  const uint32_t count = recvs_.count();
  ForgetRecvs();
  return count;
}

void VerbsDataPath::ForgetRecvs() noexcept {
  recvs_.Take();
  recv_qp_ = nullptr;
  recv_srq_ = nullptr;
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
    for (int i = 0; i < count; ++i) Dispatch(wcs[i]);
    total += count;
    if (count < kPollAtOnce) break;
  }
  if (total != 0) cq.last_completion = now;
  return total;
}

void VerbsDataPath::Dispatch(const ibv_wc& wc) noexcept {
  const uint32_t slot = SlotOf(wc.wr_id);
  if (KindOf(wc.wr_id) != WrKind::kSrqRecv) {
    if (VerbsQp* const qp = qps_.Find(slot)) qp->OnCompletion(wc);
  } else if (VerbsSrq* const srq = srqs_.Find(slot)) {
    srq->OnCompletion(PositionOf(wc.wr_id), wc);
  }
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
    if (data == kAlarm) {
      work += TakeAlarm();
      continue;
    }
    OpenContext& context = *reinterpret_cast<OpenContext*>(data & ~uint64_t{kAsyncBit});
    if (context.dead()) continue;  // by an event of this very round
    work += (data & kAsyncBit) != 0 ? TakeAsyncEvents(context, now)
                                    : TakeCompletionEvents(context, now);
  }
  return work;
}

void VerbsDataPath::RaiseAlarm() noexcept {
  constexpr uint64_t kOne = 1;
  [[maybe_unused]] const ssize_t written = ::write(alarm_fd_.get(), &kOne, sizeof(kOne));
}

int VerbsDataPath::TakeAlarm() noexcept {
  uint64_t count;
  [[maybe_unused]] const ssize_t taken = ::read(alarm_fd_.get(), &count, sizeof(count));
  int work = 0;
  for (VerbsCq* const cq : cqs_) {
    if (!cq->broken.load(std::memory_order_acquire)) continue;
    cq->broken.store(false, std::memory_order_relaxed);
    cq->sink().OnError();
    ++work;
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
    fatal |= event.event_type == IBV_EVENT_DEVICE_FATAL;
    OnAsyncEvent(event);
    ibv_ack_async_event(&event);
  }
  if (fatal) Kill(context, now);
  return count;
}

// What an event is about is alive until the event is acknowledged: destroying it waits for that.
void VerbsDataPath::OnAsyncEvent(const ibv_async_event& event) noexcept {
  const auto type = static_cast<device::AsyncEventType>(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      auto& qp = *static_cast<VerbsQp*>(event.element.qp->qp_context);
      if (event.event_type == IBV_EVENT_QP_FATAL || event.event_type == IBV_EVENT_QP_REQ_ERR ||
          event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
        qp.OnErrorEvent();
      }
      sink_.OnAsyncEvent({type, qp.owner_token(), qp.qpn()});
      break;
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_SRQ_ERR: {
      auto& srq = *static_cast<VerbsSrq*>(event.element.srq->srq_context);
      if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) srq.OnLimitReached();
      sink_.OnAsyncEvent({type, srq.owner_token(), 0});
      break;
    }
    case IBV_EVENT_CQ_ERR: {
      auto& cq = *static_cast<VerbsCq*>(event.element.cq->cq_context);
      cq.broken.store(true, std::memory_order_release);
      cq.context().path().RaiseAlarm();
      break;
    }
    default:
      break;  // ports, GIDs and the device itself: control listens for itself
  }
}

}  // namespace rdmad::verbs
