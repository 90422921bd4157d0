#include "daemon/control/daemon.h"

#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/control/clock.h"
#include "daemon/control/log.h"
#include "daemon/control/reload.h"
#include "daemon/control/version.h"

namespace rdmad::control {
namespace {

constexpr int kBacklog = 1024;

// limits.max_total_pool_bytes, or half of the host's memory.
uint64_t PoolLimit(const DaemonLimits& limits) {
  if (limits.max_total_pool_bytes != 0) return limits.max_total_pool_bytes;
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

RegistryLimits LimitsOf(const Config& config) {
  RegistryLimits limits{config.limits, config.session, config.user};
  if (limits.user.max_pool_bytes == 0) limits.user.max_pool_bytes = PoolLimit(config.limits) / 2;
  return limits;
}

// Of those that are about a device.
const char* EventName(device::AsyncEventType type) {
  switch (type) {
    case device::AsyncEventType::kPortActive:
      return "port_active";
    case device::AsyncEventType::kPortErr:
      return "port_error";
    case device::AsyncEventType::kLidChange:
      return "lid_change";
    case device::AsyncEventType::kPkeyChange:
      return "pkey_change";
    case device::AsyncEventType::kGidChange:
      return "gid_change";
    case device::AsyncEventType::kDeviceFatal:
      return "device_fatal";
    default:
      return "other";
  }
}

// SIGTERM, SIGINT and SIGHUP: Asio restores the default of a signal, to be killed, when the last
// set that has it goes. Who asks a second time shall not kill a daemon that is putting things away,
// so one set never goes.
void KeepSignalsHandled() {
  static auto* const loop = new boost::asio::io_context;
  [[maybe_unused]] static auto* const set =
      new boost::asio::signal_set(*loop, SIGTERM, SIGINT, SIGHUP);
}

}  // namespace

Daemon::Daemon(DaemonOptions options, RunDir run_dir, const Inventory* inventory)
    : options_(std::move(options)),
      run_dir_(std::move(run_dir)),
      inventory_(inventory),
      signals_(loop_),
      watchdog_(loop_),
      drain_timer_(loop_),
      turns_(loop_),
      pool_budget_(PoolLimit(options_.config.limits)) {
  RD_CHECK(!inventory_->engines.empty(), "a daemon has an engine");
}

Daemon::~Daemon() = default;

absl::Status Daemon::Run() {
  started_at_ns_ = MonotonicNs();
  if (absl::Status started = StartUp(); !started.ok()) {
    outcome_ = std::move(started);
    Stop("it could not start");
  }
  RunWhile(State::kStarting);
  RunWhile(State::kServing);
  RunWhile(State::kStopping);
  run_dir_.RemoveSockets();
  if (outcome_.ok()) Log("control").info("stopped");
  return outcome_;
}

void Daemon::RunWhile(State state) {
  while (state_ == state && loop_.run_one() != 0) {
    // Whatever ran may have moved a deadline of a connection manager.
    for (const std::unique_ptr<CmPump>& pump : cm_pumps_) pump->Rearm();
  }
}

absl::Status Daemon::StartUp() {
  // What is wrong in a client's message is answered to the client; protobuf would write it to
  // stderr as well, as often as the client likes.
  google::protobuf::SetLogHandler(nullptr);
  RD_ASSIGN_OR_RETURN(policy_, Policy::Create(options_.config.policy, options_.identity));
  KeepSignalsHandled();
  WatchSignals();
  for (engine::EngineProxy* engine : inventory_->engines) {
    engine->SetEventSink(&router_);
    engine_pumps_.push_back(std::make_unique<AsioFdWatch>(
        loop_, engine->poll_fd(), AsioFdWatch::For::kRead, [engine] { engine->Poll(); }));
  }
  for (device::ConnectionManager* manager : inventory_->managers) {
    cm_pumps_.push_back(std::make_unique<CmPump>(loop_, manager));
  }
  for (device::Device* device : inventory_->devices) devices_.Add(device);

  session::SessionEnvironment environment;
  environment.devices = &devices_;
  environment.connection_manager =
      inventory_->managers.empty() ? nullptr : inventory_->managers.front();
  environment.router = &router_;
  environment.pool_budget = &pool_budget_;
  environment.clock = MonotonicNs;
  registry_ = std::make_unique<SessionRegistry>(loop_, inventory_->engines, environment,
                                                LimitsOf(options_.config));
  admin_ =
      std::make_unique<Admin>(AdminFacts{run_dir_.path(), options_.config_file, "", started_at_ns_},
                              inventory_, &devices_, registry_.get(), &turns_);
  calls_ = std::make_unique<CallTable>(admin_.get());

  RD_ASSIGN_OR_RETURN(UniqueFd attach, Listener(std::move(options_.activated.attach),
                                                kAttachSocketName, SOCK_SEQPACKET));
  RD_ASSIGN_OR_RETURN(UniqueFd rpc,
                      Listener(std::move(options_.activated.rpc), kRpcSocketName, SOCK_STREAM));
  // Clients that connect from now on wait in the backlog until the devices are there.
  ActivateDevices([this, attach = std::make_shared<UniqueFd>(std::move(attach)),
                   rpc = std::make_shared<UniqueFd>(std::move(rpc))] {
    if (state_ != State::kStarting) return;
    WatchDeviceSources();
    // One connection per session and some to spare.
    RpcDoorOptions door_options;
    door_options.max_connections = 2 * size_t{options_.config.limits.max_sessions};
    door_options.max_connections_per_user =
        2 * size_t{options_.config.limits.max_sessions_per_user};
    rpc_door_ = std::make_unique<RpcDoor>(loop_, std::move(*rpc), &policy_, registry_.get(),
                                          calls_.get(), door_options);
    attach_server_ =
        std::make_unique<AttachServer>(loop_, std::move(*attach), &policy_, registry_.get());
    StartMetrics();
    state_ = State::kServing;
    Log("control").info(
        "ready version={} pid={} run_dir={} uid={} devices={} missing={} engines={}", kVersion,
        getpid(), run_dir_.path(), options_.identity.uid, devices_.count(),
        inventory_->Missing().size(), inventory_->engines.size());
    NotifyReady(absl::StrCat("serving ", run_dir_.path(), " with ", devices_.count(), " devices"));
    ArmWatchdog();
  });
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Daemon::Listener(UniqueFd activated, const char* name, int type) {
  if (activated) return activated;
  return run_dir_.Listen(name, type, kBacklog);
}

void Daemon::ActivateDevices(std::function<void()> done) {
  for (const MissingDevice& missing : inventory_->Missing()) {
    Log("device").warn("not usable kind={} what={} why=\"{}\"", missing.kind, missing.what,
                       missing.why);
  }
  devices_active_ = true;
  CommandDevices(&engine::EngineProxy::Activate, std::move(done));
}

void Daemon::DeactivateDevices(std::function<void()> done) {
  device_pumps_.clear();  // nothing comes or goes any more
  if (!devices_active_) {
    boost::asio::post(loop_, std::move(done));
    return;
  }
  CommandDevices(&engine::EngineProxy::Deactivate, std::move(done));
}

void Daemon::CommandDevices(DeviceCommand command, std::function<void()> done) {
  const std::vector<device::EnginePart> parts = inventory_->engine_objects();
  if (parts.empty()) {
    boost::asio::post(loop_, std::move(done));
    return;
  }
  const auto left = std::make_shared<size_t>(parts.size());
  for (const device::EnginePart& part : parts) {
    (inventory_->engines[part.engine]->*command)(*part.object, [left, done] {
      if (--*left == 0) done();
    });
  }
}

void Daemon::WatchDeviceSources() {
  for (device::DeviceSource* source : inventory_->sources) {
    source->SetObserver({[this](device::Device& device) { OnDeviceAdded(device); },
                         [this](device::Device& device) { OnDeviceRemoved(device); },
                         [this](device::Device& device, device::AsyncEventType type) {
                           OnDeviceEvent(device, type);
                         }});
    device_pumps_.push_back(std::make_unique<AsioFdWatch>(
        loop_, source->poll_fd(), AsioFdWatch::For::kRead, [source] { source->Poll(); }));
  }
}

void Daemon::OnDeviceAdded(device::Device& device) {
  const uint32_t index = devices_.Add(&device);
  Log("device").info("added name={} kind={} netdev={} index={}", device.name(), device.kind(),
                     device.netdev(), index);
}

void Daemon::OnDeviceRemoved(device::Device& device) {
  const uint32_t index = devices_.IndexOf(&device);
  if (index == shm::kNoDevice) return;
  Log("device").warn("removed name={} kind={} index={} sessions={}", device.name(), device.kind(),
                     index, registry_ != nullptr ? registry_->count() : 0);
  devices_.Remove(index);
  if (registry_ == nullptr) return;
  registry_->ForEach([index](session::Session& session) { session.OnDeviceRemoved(index); });
}

void Daemon::OnDeviceEvent(device::Device& device, device::AsyncEventType type) {
  const uint32_t index = devices_.IndexOf(&device);
  if (index == shm::kNoDevice) return;
  Log("device").info("event name={} kind={} index={} what={}", device.name(), device.kind(), index,
                     EventName(type));
  if (registry_ == nullptr) return;
  registry_->ForEach(
      [index, type](session::Session& session) { session.OnDeviceEvent(index, type); });
}

void Daemon::StartMetrics() {
  const std::optional<SocketAddress>& address = options_.config.metrics.address;
  if (!address) return;
  MetricsSources sources;
  sources.inventory = inventory_;
  sources.devices = &devices_;
  sources.registry = registry_.get();
  sources.attach = attach_server_.get();
  sources.rpc = rpc_door_.get();
  metrics_ = std::make_unique<Metrics>(sources);
  absl::StatusOr<std::unique_ptr<MetricsServer>> server =
      MetricsServer::Start(loop_, *address, [this] { return metrics_->Text(); });
  if (!server.ok()) {
    // An application is worth more than its numbers: go on without.
    Log("control").error("running without metrics: {}", std::string(server.status().message()));
    return;
  }
  metrics_server_ = *std::move(server);
  admin_->SetMetricsAddress(metrics_server_->address().ToString());
  Log("control").info("metrics address={}", metrics_server_->address().ToString());
}

void Daemon::WatchSignals() {
  boost::system::error_code ignored;
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) signals_.add(signal, ignored);
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    OnSignal(signal);
    WatchSignals();
  });
}

void Daemon::OnSignal(int signal) {
  if (signal == SIGHUP) return Reload();
  if (state_ == State::kStopping) {
    // It ends already. Who presses Ctrl-C again does not want to wait for that.
    if (signal != SIGINT) return;
    outcome_ = absl::AbortedError("interrupted before all sessions had ended");
    state_ = State::kStopped;
    return;
  }
  Stop(signal == SIGINT ? "SIGINT" : "SIGTERM");
}

void Daemon::RequestStop() {
  boost::asio::post(loop_, [this] {
    if (state_ < State::kStopping) Stop("asked to");
  });
}

void Daemon::Reload() {
  if (options_.config_file.empty()) {
    Log("control").warn(
        "SIGHUP: there is no configuration file to read again; start with --config FILE");
    return;
  }
  if (state_ != State::kServing) return;
  NotifyReloading();
  absl::StatusOr<Config> wanted = LoadConfig(options_.config_file);
  absl::StatusOr<Policy> policy =
      wanted.ok() ? Policy::Create(wanted->policy, options_.identity) : wanted.status();
  if (!policy.ok()) {
    Log("control").error("reload refused, nothing changed: {}",
                         std::string(policy.status().message()));
  } else {
    for (const std::string& key : NeedsRestart(options_.config, *wanted)) {
      Log("control").warn("reload: {} changes only with a restart", key);
    }
    options_.config = LiveMerge(options_.config, *wanted);
    policy_ = *std::move(policy);
    registry_->SetLimits(LimitsOf(options_.config));
    if (!options_.log_level_fixed) SetLogLevel(options_.config.log.level);
    Log("control").info("reloaded config={}", options_.config_file);
  }
  NotifyReady(absl::StrCat("serving ", run_dir_.path(), " with ", devices_.count(), " devices"));
}

void Daemon::ArmWatchdog() {
  const std::optional<std::chrono::microseconds> interval = WatchdogInterval();
  if (!interval) return;
  NotifyWatchdog();
  watchdog_.expires_after(*interval);
  watchdog_.async_wait([this](const boost::system::error_code& error) {
    if (!error) ArmWatchdog();
  });
}

void Daemon::Stop(const std::string& why) {
  state_ = State::kStopping;
  Log("control").info("stopping why=\"{}\" sessions={}", why,
                      registry_ != nullptr ? registry_->count() : 0);
  NotifyStopping();
  metrics_server_.reset();
  if (attach_server_ != nullptr) attach_server_->Stop();
  if (rpc_door_ != nullptr) rpc_door_->StopAccepting();
  drain_timer_.expires_after(options_.drain_limit);
  drain_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    outcome_ = absl::DeadlineExceededError(
        absl::StrCat("sessions did not end within ", options_.drain_limit.count(), " s"));
    state_ = State::kStopped;
  });
  if (registry_ == nullptr) {
    drained_ = true;
    state_ = State::kStopped;
    return;
  }
  registry_->EndAll("rdmad stops", [this] { OnSessionsEnded(); });
}

void Daemon::OnSessionsEnded() {
  if (rpc_door_ != nullptr) rpc_door_->Close();
  DeactivateDevices([this] {
    drained_ = true;
    state_ = State::kStopped;
  });
}

}  // namespace rdmad::control
