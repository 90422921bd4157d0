#include "daemon/engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/engine/cq_port.h"
#include "daemon/engine/engine_proxy_impl.h"
#include "daemon/engine/queue_pair_port.h"
#include "daemon/engine/session_port.h"

namespace rdmad::engine {

using device::TimeNs;

namespace {

// While the engine is busy: how often it asks the kernel whether a full pipe has room again.
constexpr TimeNs kLookForRoomEveryNs = 100'000;

TimeNs Now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return TimeNs{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

absl::StatusOr<UniqueFd> CreateEventFd() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return absl::ResourceExhaustedError(absl::StrCat("engine: eventfd: errno=", errno));
  return fd;
}

void WriteEventFd(int fd) {
  const uint64_t one = 1;
  // Full means that it is readable, which is all that matters.
  while (::write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  memory::SegmentOptions page_options;
  page_options.name = absl::StrCat("rdmad-engine", options.index);
  page_options.size_bytes = sizeof(shm::EnginePage);
  page_options.header = shm::SegmentKind::kEnginePage;
  page_options.read_only_to_others = true;
  RD_ASSIGN_OR_RETURN(memory::Segment page, memory::Segment::Create(page_options));
  RD_ASSIGN_OR_RETURN(UniqueFd command_fd, CreateEventFd());
  RD_ASSIGN_OR_RETURN(UniqueFd event_fd, CreateEventFd());
  std::unique_ptr<Engine> engine(
      new Engine(options, std::move(page), std::move(command_fd), std::move(event_fd)));
  WaitSet& waits = engine->context_.waits;
  CommandBell& bell = engine->command_bell_;
  if (!waits.valid() || !waits.Add(bell.fd.get(), EPOLLIN, &bell)) {
    return absl::ResourceExhaustedError(absl::StrCat("engine: epoll: errno=", errno));
  }
  return engine;
}

Engine::Engine(const EngineOptions& options, memory::Segment page, UniqueFd command_fd,
               UniqueFd event_fd)
    : options_(options),
      page_segment_(std::move(page)),
      page_(reinterpret_cast<shm::EnginePage*>(page_segment_.data())),
      event_fd_(std::move(event_fd)),
      commands_(options.command_ring_slots),
      // Answers alone can fill as many slots as there are commands; events have the rest.
      events_(std::max(options.event_ring_slots, 2 * options.command_ring_slots)),
      idle_(options.idle) {
  command_bell_.fd = std::move(command_fd);
  proxy_ = std::make_unique<EngineProxyImpl>(*this);
}

Engine::~Engine() {
  Stop();
}

void Engine::AddDataPath(device::DataPath* path) {
  RD_CHECK(!thread_.joinable(), "data paths come before the start");
  // One generation back, so that the first look reads the list.
  paths_.push_back({path, path->PollFdsGeneration() - 1, {}});
}

EngineProxy& Engine::proxy() noexcept {
  return *proxy_;
}

void Engine::Start() {
  RD_CHECK(!thread_.joinable() && !stop_.load(std::memory_order_relaxed), "started once");
  // The new thread inherits the mask: signals are control's, and a client that closes its end of a
  // pipe must not raise SIGPIPE.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // Those that a thread brings upon itself are not to be blocked.
  for (const int synchronous : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&all, synchronous);
  }
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::string name = absl::StrCat("rdmad-eng", options_.index);
  ::pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

void Engine::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_seq_cst);
  WriteEventFd(command_bell_.fd.get());
  thread_.join();
}

void Engine::Run() noexcept {
  while (!stop_.load(std::memory_order_relaxed)) {
    const TimeNs now = Now();
    const bool worked = DoWork(now) != 0;
    switch (idle_.AfterTurn(now, worked)) {
      case IdleAction::kContinue:
        break;
      case IdleAction::kYield:
        ::sched_yield();
        break;
      case IdleAction::kSleep:
        WaitForWork(now);
        break;
    }
  }
}

int Engine::DoWork(TimeNs now) noexcept {
  if (last_turn_worked_) stats_.busy_ns.Add(static_cast<uint64_t>(now - last_turn_at_));
  stats_.turns.Add(1);
  uint32_t work = CollectDoorbells();
  work += RunCommands(now);
  work += TakeWrs(now);
  work += DriveDataPaths(now);
  FailOverrunCqs(now);
  TellControl();
  if (context_.blocked_channels != 0) LookForChannelRoom(now);
  last_turn_worked_ = work != 0;
  last_turn_at_ = now;
  return static_cast<int>(work);
}

uint32_t Engine::CollectDoorbells() noexcept {
  uint32_t rung = 0;
  context_.sessions.ForEach(
      [&rung](ShmSessionPort& session) { rung += session.CollectDoorbells(); });
  return rung;
}

uint32_t Engine::RunCommands(TimeNs now) noexcept {
  uint32_t count = 0;
  EngineCommand command;
  // Bounded: control sends no more than the ring's size before it has popped answers.
  while (count < options_.command_ring_slots && commands_.Pop(command)) {
    Execute(command, now);
    ++count;
  }
  return count;
}

void Engine::Execute(const EngineCommand& command, TimeNs now) noexcept {
  EngineEvent answer;
  answer.kind = EngineEvent::Kind::kAnswer;
  answer.number = command.number;
  switch (command.kind) {
    case EngineCommand::Kind::kActivate:
      command.object->Activate(now);
      break;
    case EngineCommand::Kind::kDeactivate:
      command.object->Deactivate(now);
      break;
    case EngineCommand::Kind::kModifyQp:
      answer.result = ModifyQp(*command.qp, command.attr, now);
      break;
    case EngineCommand::Kind::kQueryQp:
      answer.attr = command.qp->Query();
      break;
    case EngineCommand::Kind::kKnownQp:
      answer.attr = command.qp->Known();
      break;
    case EngineCommand::Kind::kSetSrqLimit:
      answer.result = command.srq->SetLimit(command.limit);
      break;
    case EngineCommand::Kind::kQuerySrqLimit:
      answer.limit = command.srq->limit();
      break;
  }
  // A data path may have given up a socket, which control closes after the answer: by then its
  // number must be out of the wait set.
  WatchDataPaths();
  RD_CHECK(events_.Push(answer),
           "control has at most as many commands under way as there are slots");
  tell_control_ = true;
}

device::QpResult Engine::ModifyQp(device::Qp& qp, const device::QpAttr& attr, TimeNs now) noexcept {
  const device::QpResult result = qp.Modify(attr, now);
  if (result == device::QpResult::kOk && (attr.mask & device::kQpAttrState) != 0 &&
      attr.state == device::QpState::kReset) {
    ShmQueuePairPort* const port = context_.ports_by_qp.Find(reinterpret_cast<uintptr_t>(&qp));
    if (port != nullptr) port->OnReset();
  }
  return result;
}

uint32_t Engine::TakeWrs(TimeNs now) noexcept {
  if (context_.active.empty()) return 0;
  // Those that are active now have a turn each; those with more to do queue up again behind.
  ActiveList round;
  round.TakeToFront(context_.active);
  uint32_t wrs = 0;
  while (wrs < options_.wrs_per_turn) {
    WorkSource* const source = round.PopFront();
    if (source == nullptr) break;
    const DrainResult result = source->Drain(options_.wrs_per_ring, now);
    wrs += result.wrs;
    if (result.more) context_.active.PushBack(*source);
  }
  context_.active.TakeToFront(round);  // who had no turn comes first in the next
  return wrs;
}

uint32_t Engine::DriveDataPaths(TimeNs now) noexcept {
  uint32_t work = 0;
  for (WatchedPath& watched : paths_) {
    work += static_cast<uint32_t>(std::max(watched.path->DoWork(now), 0));
  }
  return work;
}

void Engine::FailOverrunCqs(TimeNs now) noexcept {
  // Failing QPs flushes them, which may overrun further CQs: they join the list meanwhile.
  while (ShmCqPort* const cq = context_.overrun_cqs.PopFront()) cq->FailUsers(now);
}

void Engine::TellControl() noexcept {
  if (!context_.events.empty()) {
    tell_control_ = true;
    if (!context_.events.Flush(events_, options_.command_ring_slots)) {
      stats_.events_delayed.Add(1);
      // First say that there is more, then try again: control makes room first, then looks whether
      // there is more. So either this finds room or control will ring.
      events_waiting_.store(true, std::memory_order_seq_cst);
      static_cast<void>(context_.events.Flush(events_, options_.command_ring_slots));
    }
  }
  if (std::exchange(tell_control_, false)) WakeControl();
}

void Engine::WakeControl() noexcept {
  WriteEventFd(event_fd_.get());
}

void Engine::LookForChannelRoom(TimeNs now) noexcept {
  if (now - looked_for_room_at_ < kLookForRoomEveryNs) return;
  looked_for_room_at_ = now;
  context_.waits.Wait(0);
}

void Engine::WatchDataPaths() noexcept {
  for (WatchedPath& watched : paths_) {
    const uint32_t generation = watched.path->PollFdsGeneration();
    if (generation == watched.generation) continue;
    watched.generation = generation;
    for (const int fd : watched.fds) context_.waits.Remove(fd);
    const std::span<const int> fds = watched.path->PollFds();
    watched.fds.assign(fds.begin(), fds.end());
    for (const int fd : fds) {
      // Only memory can be short here; the path's packets then wait for other reasons to wake.
      static_cast<void>(context_.waits.Add(fd, EPOLLIN, nullptr));
    }
  }
}

bool Engine::AnythingToDo() const noexcept {
  if (!commands_.Empty() || !context_.active.empty() || stop_.load(std::memory_order_seq_cst)) {
    return true;
  }
  return context_.sessions.FindIf(
             [](const ShmSessionPort& session) { return session.AnyDoorbell(); }) != nullptr;
}

TimeNs Engine::NextDeadline(TimeNs now) noexcept {
  TimeNs deadline = device::kNever;
  for (WatchedPath& watched : paths_) {
    deadline = std::min(deadline, watched.path->NextDeadline(now));
  }
  return deadline;
}

void Engine::WaitForWork(TimeNs now, TimeNs max_wait_ns) noexcept {
  WatchDataPaths();
  page_->sleeping.store(1, std::memory_order_seq_cst);  // pairs with EngineNeedsWake()
  // Asked last, so that a path that must arm something before a wait can do it here.
  const TimeNs deadline = AnythingToDo() ? now : NextDeadline(now);
  if (deadline > now) {
    const TimeNs timeout = deadline == device::kNever ? device::kNever : deadline - now;
    context_.waits.Wait(std::min(timeout, max_wait_ns));
    stats_.wakeups.Add(1);
  }
  page_->sleeping.store(0, std::memory_order_seq_cst);
}

void Engine::CommandBell::OnReady(uint32_t) noexcept {
  uint64_t count;
  // Non-blocking; EAGAIN means that it was read already.
  [[maybe_unused]] const ssize_t bytes = ::read(fd.get(), &count, sizeof(count));
}

}  // namespace rdmad::engine
