// The control room put together: one event loop, on the thread that calls Run(), that owns all
// control state.
//
// It begins with the run directory (its lock says that no other daemon serves it), activates the
// devices, opens the two sockets and the metrics, and says that it is ready. It ends on SIGTERM or
// SIGINT: no more connections, every session ended and given back, gRPC closed, devices
// deactivated, sockets removed. SIGHUP reads the configuration again.
//
// Thread: Run()'s, which becomes the control thread. Owner: main.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/control/admin.h"
#include "daemon/control/attach_server.h"
#include "daemon/control/call_table.h"
#include "daemon/control/cm_pump.h"
#include "daemon/control/config.h"
#include "daemon/control/fd_watch.h"
#include "daemon/control/inventory.h"
#include "daemon/control/metrics.h"
#include "daemon/control/metrics_server.h"
#include "daemon/control/policy.h"
#include "daemon/control/rpc_door.h"
#include "daemon/control/run_dir.h"
#include "daemon/control/session_registry.h"
#include "daemon/control/systemd.h"
#include "daemon/control/turn_queue.h"
#include "daemon/session/device_list.h"
#include "daemon/session/event_router.h"
#include "daemon/session/quota.h"

namespace rdmad::control {

struct DaemonOptions {
  Config config;
  std::string config_file;  // read again on SIGHUP; empty: there is none
  DaemonIdentity identity;
  ActivatedSockets activated;
  // How long sessions may take to give everything back when the daemon stops.
  std::chrono::seconds drain_limit{10};
  bool log_level_fixed = false;  // by --log-level: a reload leaves it alone
};

class Daemon {
 public:
  // `run_dir` is the daemon's own; `inventory` outlives it.
  Daemon(DaemonOptions options, RunDir run_dir, const Inventory* inventory);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Opens the sockets and serves until a signal ends it. An error if it could not start (says what
  // and what to do), or could not end in order.
  absl::Status Run();

  // False after Run() if sessions or devices could not be given back in time. The engine may then
  // still use them, so the process must end without destroying anything.
  [[nodiscard]] bool drained() const noexcept { return drained_; }

  // As SIGTERM does. Thread: any.
  void RequestStop();

 private:
  enum class State : uint8_t { kStarting, kServing, kStopping, kStopped };

  absl::Status StartUp();
  absl::StatusOr<UniqueFd> Listener(UniqueFd activated, const char* name, int type);
  void ActivateDevices(std::function<void()> done);
  void DeactivateDevices(std::function<void()> done);
  // One of the two, for all that the devices have on engines; `done` when all have answered.
  using DeviceCommand = void (engine::EngineProxy::*)(device::EngineObject&,
                                                      engine::EngineProxy::Done);
  void CommandDevices(DeviceCommand command, std::function<void()> done);
  void WatchDeviceSources();
  void OnDeviceAdded(device::Device& device);
  void OnDeviceRemoved(device::Device& device);
  void OnDeviceEvent(device::Device& device, device::AsyncEventType type);
  void StartMetrics();
  void WatchSignals();
  void OnSignal(int signal);
  void Reload();
  void ArmWatchdog();
  void Stop(const std::string& why);
  void OnSessionsEnded();
  // Runs the loop until `state_` is no longer `state`.
  void RunWhile(State state);

  DaemonOptions options_;
  RunDir run_dir_;
  const Inventory* const inventory_;
  State state_ = State::kStarting;
  absl::Status outcome_;
  bool drained_ = false;
  bool devices_active_ = false;
  int64_t started_at_ns_ = 0;

  boost::asio::io_context loop_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer watchdog_;
  boost::asio::steady_timer drain_timer_;
  TurnQueue turns_;
  session::DeviceList devices_;
  session::EventRouter router_;
  session::HostBudget pool_budget_;
  Policy policy_;
  std::vector<std::unique_ptr<AsioFdWatch>> engine_pumps_;
  std::vector<std::unique_ptr<CmPump>> cm_pumps_;
  std::vector<std::unique_ptr<AsioFdWatch>> device_pumps_;
  std::unique_ptr<SessionRegistry> registry_;
  std::unique_ptr<Admin> admin_;
  std::unique_ptr<CallTable> calls_;
  std::unique_ptr<AttachServer> attach_server_;
  std::unique_ptr<RpcDoor> rpc_door_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace rdmad::control
