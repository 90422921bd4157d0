#include "daemon/engine/engine_proxy_impl.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/engine/ah_port.h"
#include "daemon/engine/channel_port.h"
#include "daemon/engine/cq_port.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/queue_pair_port.h"
#include "daemon/engine/session_port.h"
#include "daemon/engine/srq_port.h"

namespace rdmad::engine {

std::unique_ptr<SessionPort> EngineProxyImpl::CreateSessionPort(SessionPortInit init) {
  return std::make_unique<ShmSessionPort>(engine_.context_, std::move(init));
}

std::unique_ptr<ChannelPort> EngineProxyImpl::CreateChannelPort(ChannelPortInit init) {
  return std::make_unique<ShmChannelPort>(engine_.context_, std::move(init));
}

std::unique_ptr<CqPort> EngineProxyImpl::CreateCqPort(const CqPortInit& init) {
  return std::make_unique<ShmCqPort>(engine_.context_, init);
}

std::unique_ptr<QueuePairPort> EngineProxyImpl::CreateQueuePairPort(const QueuePairPortInit& init) {
  return std::make_unique<ShmQueuePairPort>(engine_.context_, init);
}

std::unique_ptr<SrqPort> EngineProxyImpl::CreateSrqPort(const SrqPortInit& init) {
  return std::make_unique<ShmSrqPort>(engine_.context_, init);
}

std::unique_ptr<AhPort> EngineProxyImpl::CreateAhPort(const AhPortInit& init) {
  return std::make_unique<ShmAhPort>(init);
}

void EngineProxyImpl::Activate(device::EngineObject& object, Done done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kActivate;
  command.object = &object;
  Send(command, std::move(done));
}

void EngineProxyImpl::Deactivate(device::EngineObject& object, Done done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kDeactivate;
  command.object = &object;
  Send(command, std::move(done));
}

void EngineProxyImpl::ModifyQp(device::Qp& qp, const device::QpAttr& attr, ModifyDone done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kModifyQp;
  command.qp = &qp;
  command.attr = attr;
  Send(command, std::move(done));
}

void EngineProxyImpl::QueryQp(device::Qp& qp, QueryDone done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kQueryQp;
  command.qp = &qp;
  Send(command, std::move(done));
}

void EngineProxyImpl::ShowQp(device::Qp& qp, QueryDone done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kKnownQp;
  command.qp = &qp;
  Send(command, std::move(done));
}

void EngineProxyImpl::SetSrqLimit(device::Srq& srq, uint32_t limit, ModifyDone done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kSetSrqLimit;
  command.srq = &srq;
  command.limit = limit;
  Send(command, std::move(done));
}

void EngineProxyImpl::QuerySrqLimit(device::Srq& srq, LimitDone done) {
  EngineCommand command;
  command.kind = EngineCommand::Kind::kQuerySrqLimit;
  command.srq = &srq;
  Send(command, std::move(done));
}

void EngineProxyImpl::Send(EngineCommand command, Callback callback) {
  command.number = next_number_++;
  callbacks_.push_back(std::move(callback));
  waiting_.push_back(command);
  Pump();
  if (!waiting_.empty()) delayed_.fetch_add(1, std::memory_order_relaxed);
}

void EngineProxyImpl::Pump() {
  bool sent = false;
  while (!waiting_.empty() && under_way_ < engine_.commands_.capacity()) {
    RD_CHECK(engine_.commands_.Push(waiting_.front()), "fewer are under way than there are slots");
    waiting_.pop_front();
    ++under_way_;
    sent = true;
  }
  // Pushed first, then looked: see Engine::WaitForWork().
  if (sent && shm::EngineNeedsWake(*engine_.page_)) RingEngine();
}

void EngineProxyImpl::RingEngine() {
  const uint64_t one = 1;
  while (::write(engine_.command_bell_.fd.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void EngineProxyImpl::Poll() {
  uint64_t count;
  // Read before the ring is: what comes later makes it readable again. EAGAIN: nothing was written.
  [[maybe_unused]] const ssize_t bytes = ::read(engine_.event_fd_.get(), &count, sizeof(count));
  EngineEvent event;
  // Bounded, so that one engine cannot keep control busy for ever.
  uint32_t handled = 0;
  while (handled < engine_.events_.capacity() && engine_.events_.Pop(event)) {
    ++handled;
    Handle(event);
  }
  Pump();
  // Room was made first, then looked: see Engine::TellControl().
  if (handled != 0 && engine_.events_waiting_.exchange(false, std::memory_order_seq_cst))
    RingEngine();
  if (!engine_.events_.Empty()) engine_.WakeControl();
}

void EngineProxyImpl::Handle(const EngineEvent& event) {
  switch (event.kind) {
    case EngineEvent::Kind::kAnswer:
      HandleAnswer(event);
      break;
    case EngineEvent::Kind::kQpAsync:
      if (sink_ != nullptr) sink_->OnQpAsyncEvent(event.async);
      break;
    case EngineEvent::Kind::kSessionCorrupt:
      if (sink_ != nullptr) sink_->OnSessionCorrupt(event.token, event.what);
      break;
    case EngineEvent::Kind::kCqOverrun:
      if (sink_ != nullptr) sink_->OnCqOverrun(event.token);
      break;
  }
}

void EngineProxyImpl::HandleAnswer(const EngineEvent& event) {
  RD_CHECK(event.number == next_answer_ && !callbacks_.empty(), "answers come in order, each once");
  ++next_answer_;
  --under_way_;
  // Taken out first: the callback may send further commands.
  const Callback callback = std::move(callbacks_.front());
  callbacks_.pop_front();
  if (const Done* const done = std::get_if<Done>(&callback)) {
    if (*done) (*done)();
  } else if (const ModifyDone* const modify_done = std::get_if<ModifyDone>(&callback)) {
    if (*modify_done) (*modify_done)(event.result);
  } else if (const QueryDone* const query_done = std::get_if<QueryDone>(&callback)) {
    if (*query_done) (*query_done)(event.attr);
  } else if (const LimitDone* const limit_done = std::get_if<LimitDone>(&callback)) {
    if (*limit_done) (*limit_done)(event.limit);
  }
}

uint32_t EngineProxyImpl::index() const noexcept {
  return engine_.options_.index;
}

int EngineProxyImpl::engine_page_fd() const noexcept {
  return engine_.page_segment_.fd();
}

uint64_t EngineProxyImpl::engine_page_bytes() const noexcept {
  return engine_.page_segment_.size_bytes();
}

int EngineProxyImpl::poll_fd() const noexcept {
  return engine_.event_fd_.get();
}

EngineStats EngineProxyImpl::Stats() const noexcept {
  EngineStats stats{};
  stats.sleeping = engine_.page_->sleeping.load(std::memory_order_relaxed) != 0;
  stats.work_requests = engine_.context_.work_requests.Get();
  stats.completions = engine_.context_.completions.Get();
  stats.wakeups = engine_.stats_.wakeups.Get();
  stats.busy_ns = engine_.stats_.busy_ns.Get();
  stats.turns = engine_.stats_.turns.Get();
  stats.commands_delayed = delayed_.load(std::memory_order_relaxed);
  stats.events_delayed = engine_.stats_.events_delayed.Get();
  stats.events_dropped = engine_.context_.events.dropped();
  return stats;
}

}  // namespace rdmad::engine
