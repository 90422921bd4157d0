#include "daemon/control/rpc_quiet.h"

#include <grpc/event_engine/event_engine.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

// Not declared in an installed header. gRPC itself calls it around fork(). Weak: a gRPC without it
// is only less quiet.
[[gnu::weak]] void grpc_timer_manager_set_threading(bool enabled);

namespace rdmad::control {
namespace {

using grpc_event_engine::experimental::EndpointConfig;
using grpc_event_engine::experimental::EventEngine;
using grpc_event_engine::experimental::MemoryAllocator;
using grpc_event_engine::experimental::MemoryAllocatorFactory;

// Runs closures, now or later, on one thread. gRPC 1.51 asks its event engine for no more than that
// in a server; what it does not ask for answers Unimplemented.
class SleepingEventEngine final : public EventEngine {
 public:
  SleepingEventEngine()
      : thread_([this] {
          pthread_setname_np(pthread_self(), "rdmad-grpc");
          Run();
        }) {}

  ~SleepingEventEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void Run(Closure* closure) override { RunAfter(Duration::zero(), closure); }
  void Run(absl::AnyInvocable<void()> closure) override {
    RunAfter(Duration::zero(), std::move(closure));
  }
  TaskHandle RunAfter(Duration when, Closure* closure) override {
    return RunAfter(when, [closure] { closure->Run(); });
  }
  TaskHandle RunAfter(Duration when, absl::AnyInvocable<void()> closure) override {
    const std::lock_guard lock(mutex_);
    const Key key{Clock::now() + when, ++last_id_};
    tasks_.emplace(key, std::move(closure));
    changed_.notify_one();
    return {{static_cast<intptr_t>(key.first.time_since_epoch().count()), key.second}};
  }
  bool Cancel(TaskHandle handle) override {
    const std::lock_guard lock(mutex_);
    const Clock::time_point when{Clock::duration(handle.keys[0])};
    return tasks_.erase(Key{when, handle.keys[1]}) != 0;
  }
  bool IsWorkerThread() override { return std::this_thread::get_id() == thread_.get_id(); }

  absl::StatusOr<std::unique_ptr<Listener>> CreateListener(
      Listener::AcceptCallback, absl::AnyInvocable<void(absl::Status)>, const EndpointConfig&,
      std::unique_ptr<MemoryAllocatorFactory>) override {
    return absl::UnimplementedError("rdmad accepts by itself");
  }
  ConnectionHandle Connect(OnConnectCallback on_connect, const ResolvedAddress&,
                           const EndpointConfig&, MemoryAllocator, Duration) override {
    Run([on_connect = std::move(on_connect)]() mutable {
      on_connect(absl::UnimplementedError("rdmad connects to nobody"));
    });
    return {{-1, -1}};
  }
  bool CancelConnect(ConnectionHandle) override { return false; }
  std::unique_ptr<DNSResolver> GetDNSResolver(const DNSResolver::ResolverOptions&) override {
    return nullptr;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<Clock::time_point, intptr_t>;

  void Run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (tasks_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const Clock::time_point when = tasks_.begin()->first.first;
      if (when > Clock::now()) {
        changed_.wait_until(lock, when);
        continue;
      }
      absl::AnyInvocable<void()> task = std::move(tasks_.begin()->second);
      tasks_.erase(tasks_.begin());
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, absl::AnyInvocable<void()>> tasks_;
  intptr_t last_id_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

void QuietGrpcBefore() {
  grpc_event_engine::experimental::SetEventEngineFactory(
      [] { return std::make_unique<SleepingEventEngine>(); });
}

void QuietGrpcAfter() {
  if (grpc_timer_manager_set_threading != nullptr) grpc_timer_manager_set_threading(false);
}

}  // namespace rdmad::control
