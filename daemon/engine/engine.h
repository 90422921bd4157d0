// An engine: the thread that carries work requests from the clients' rings to devices and
// completions back.
//
// One turn, DoWork(now), does a bounded amount of each, in this order:
//   1. collect doorbells     which rings have new WRs
//   2. run commands          all that control had sent by then
//   3. take WRs              from the active rings in rounds, with a budget per ring and per turn
//   4. drive the data paths  packets, timers
//   5. tell control          answers and events
// Control answers a client only after the engine has executed the command in question, and even a
// client that is told earlier cannot overtake: a doorbell collected in step 1 was rung before step
// 2, so every command that was visible to whoever made the client ring it is executed before its
// WRs are taken. A queue whose port is activated by a command is looked at once in step 3, so a
// bell rung for it in step 1, when nobody knew it, is not lost either.
//
// Sleeping: the engine writes "I sleep" on its page, then looks at everything once more (doorbells,
// commands, the data paths' deadlines), then waits; whoever brings work publishes it first, then
// looks at the page. Both sides are sequentially consistent, so one of them sees the other. While
// it sleeps it costs nothing; it wakes for a client's wake pipe, for control's eventfd, for a data
// path's descriptors or deadline, and for nothing else.
//
// After activation no step allocates, takes a lock or logs.
//
// Thread: construction, Start, Stop and proxy() control; DoWork and WaitForWork the engine's, which
// is the caller's own if Start() is never called (tests). Owner: main.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/engine/engine_command.h"
#include "daemon/engine/engine_context.h"
#include "daemon/engine/engine_idle.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/engine/engine_stats.h"
#include "daemon/engine/spsc_ring.h"
#include "daemon/memory/segment.h"
#include "proto/shm/engine_page.h"

namespace rdmad::engine {

class EngineProxyImpl;

struct EngineOptions {
  uint32_t index = 0;
  uint32_t command_ring_slots = 512;  // powers of two; the event ring holds at least twice as many
  uint32_t event_ring_slots = 2048;
  uint32_t wrs_per_ring = 32;  // taken from one ring before the next one has its turn
  uint32_t wrs_per_turn = 1024;
  IdleOptions idle;
};

class Engine {
 public:
  // Errors: ResourceExhausted, Internal (no memory, no descriptors).
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  // Stops the thread. All ports are destroyed, or at least deactivated, before.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Where the devices of this engine report async events. Valid as long as the engine.
  device::AsyncSink* async_sink() noexcept { return &context_.events; }
  // Before Start(). `path` outlives the engine's thread.
  void AddDataPath(device::DataPath* path);

  EngineProxy& proxy() noexcept;

  // Runs turns in a thread of its own, in which all signals are blocked. Once.
  void Start();
  // Ends the thread after its current turn. Commands that were not executed never are.
  void Stop();

  // One turn; returns the work done, 0 if there was none.
  int DoWork(device::TimeNs now) noexcept;
  // Sleeps until there is something to do, at most `max_wait_ns`. Returns at once if there already
  // is.
  void WaitForWork(device::TimeNs now, device::TimeNs max_wait_ns = device::kNever) noexcept;

 private:
  friend class EngineProxyImpl;

  // Control's eventfd: being written to is all it has to say.
  class CommandBell final : public Waitable {
   public:
    void OnReady(uint32_t events) noexcept override;
    UniqueFd fd;
  };

  // The descriptors of one data path in the wait set.
  struct WatchedPath {
    device::DataPath* path;
    uint32_t generation = 0;
    std::vector<int> fds;
  };

  Engine(const EngineOptions& options, memory::Segment page, UniqueFd command_fd,
         UniqueFd event_fd);

  void Run() noexcept;
  uint32_t CollectDoorbells() noexcept;
  uint32_t RunCommands(device::TimeNs now) noexcept;
  void Execute(const EngineCommand& command, device::TimeNs now) noexcept;
  device::QpResult ModifyQp(device::Qp& qp, const device::QpAttr& attr,
                            device::TimeNs now) noexcept;
  uint32_t TakeWrs(device::TimeNs now) noexcept;
  uint32_t DriveDataPaths(device::TimeNs now) noexcept;
  void FailOverrunCqs(device::TimeNs now) noexcept;
  void TellControl() noexcept;
  void WatchDataPaths() noexcept;
  void LookForChannelRoom(device::TimeNs now) noexcept;
  bool AnythingToDo() const noexcept;
  device::TimeNs NextDeadline(device::TimeNs now) noexcept;
  void WakeControl() noexcept;

  const EngineOptions options_;
  EngineContext context_;
  memory::Segment page_segment_;
  shm::EnginePage* const page_;
  CommandBell command_bell_;
  const UniqueFd event_fd_;  // control polls it
  SpscRing<EngineCommand> commands_;
  SpscRing<EngineEvent> events_;
  // Events wait in the outbox for room in events_: control rings the command bell once it has made
  // some.
  std::atomic<bool> events_waiting_{false};
  std::vector<WatchedPath> paths_;
  IdlePolicy idle_;
  LiveEngineStats stats_;

  bool tell_control_ = false;  // something was put into events_ in this turn
  bool last_turn_worked_ = false;
  device::TimeNs last_turn_at_ = 0;
  device::TimeNs looked_for_room_at_ = 0;

  std::unique_ptr<EngineProxyImpl> proxy_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace rdmad::engine
