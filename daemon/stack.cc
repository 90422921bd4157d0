#include "daemon/stack.h"

#include <sys/random.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/control/clock.h"
#include "daemon/control/log.h"
#include "daemon/device/soft/cm/cm_counters.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/net_config.h"

namespace rdmad {
namespace {

uint64_t RandomSeed() {
  uint64_t seed = 0;
  while (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
  }
  return seed;
}

template <typename Problem>
std::vector<control::MissingDevice> Describe(const char* kind,
                                             const std::vector<Problem>& problems) {
  std::vector<control::MissingDevice> all;
  for (const Problem& problem : problems) all.push_back({kind, problem.what, problem.why});
  return all;
}

template <typename T>
std::vector<T*> PointersTo(const std::vector<std::unique_ptr<T>>& owners) {
  std::vector<T*> all;
  for (const std::unique_ptr<T>& owner : owners) all.push_back(owner.get());
  return all;
}

}  // namespace

absl::Status Stack::Build(const control::Config& config) {
  RD_RETURN_IF_ERROR(BuildEngines(config.engine));
  if (config.verbs.enabled) RD_RETURN_IF_ERROR(BuildVerbs(config.verbs));
  if (config.soft.enabled) RD_RETURN_IF_ERROR(BuildSoft(config.soft));
  return JoinManagers();
}

Stack::~Stack() {
  if (verbs_devices_ != nullptr) verbs_devices_->SetConnectionManager(nullptr);
}

void Stack::Start() {
  for (const auto& engine : engines_) engine->Start();
}

void Stack::Stop() {
  for (const auto& engine : engines_) engine->Stop();
}

absl::Status Stack::BuildEngines(const control::EngineConfig& config) {
  for (uint32_t index = 0; index < config.count; ++index) {
    engine::EngineOptions options;
    options.index = index;
    options.idle.max_spin_ns = int64_t{config.spin_us} * 1000;
    RD_ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine, engine::Engine::Create(options));
    inventory_.engines.push_back(&engine->proxy());
    engines_.push_back(std::move(engine));
  }
  return absl::OkStatus();
}

absl::Status Stack::BuildVerbs(const control::VerbsConfig& config) {
  for (uint32_t index = 0; index < engines_.size(); ++index) {
    engine::Engine& engine = *engines_[index];
    RD_ASSIGN_OR_RETURN(std::unique_ptr<verbs::VerbsDataPath> path,
                        verbs::VerbsDataPath::Create(engine.async_sink(), index));
    engine.AddDataPath(path.get());
    verbs_paths_.push_back(std::move(path));
  }
  RD_ASSIGN_OR_RETURN(
      verbs_devices_,
      verbs::VerbsDevices::Create(
          {config.devices}, PointersTo(verbs_paths_),
          [this](uint32_t engine, device::EngineObject& object, std::function<void()> done) {
            engines_[engine]->proxy().Activate(object, std::move(done));
          }));
  inventory_.sources.push_back(verbs_devices_.get());
  RD_ASSIGN_OR_RETURN(verbs_manager_, verbs::VerbsConnectionManager::Create(verbs_devices_.get()));
  verbs_manager_->SetLateFailureSink([](const absl::Status& status) {
    control::Log("device").warn(
        "an id from before the host's first RDMA device is of no use on it: {}", status.ToString());
  });
  verbs_devices_->SetConnectionManager(verbs_manager_.get());
  inventory_.devices = verbs_devices_->devices();
  inventory_.missing.emplace_back([this] { return Describe("verbs", verbs_devices_->problems()); });
  if (inventory_.devices.empty()) {
    control::Log("device").info("no RDMA device on this host; one that comes will be served");
  }
  return absl::OkStatus();
}

absl::Status Stack::BuildSoft(const control::SoftConfig& config) {
  RD_ASSIGN_OR_RETURN(mads_, soft::SoftMadIo::Create());
  RD_RETURN_IF_ERROR(BuildSoftPaths(config));
  qpns_.emplace(RandomSeed());
  soft::SoftDeviceContext context;
  context.paths = PointersTo(soft_paths_);
  context.qpns = &*qpns_;
  context.clock = control::MonotonicNs;
  soft::SoftDevicesConfig devices;
  for (const IpAddress& address : config.addresses) devices.only.push_back(address.ToString());
  for (const std::string& name : config.interfaces) devices.only.push_back(name);
  RD_ASSIGN_OR_RETURN(soft_devices_, soft::SoftDevices::Create(devices, context, mads_.get(),
                                                               SoftHooks(devices.only.empty())));

  soft::CmOptions options;
  options.clock = control::MonotonicNs;
  options.seed = RandomSeed();
  options.neighbors = &neighbors_;
  RD_ASSIGN_OR_RETURN(soft_manager_, soft::SoftConnectionManager::Create(
                                         mads_.get(), soft_devices_.get(), options));

  for (soft::SoftDevice* device : soft_devices_->devices()) inventory_.devices.push_back(device);
  inventory_.sources.push_back(soft_devices_.get());
  inventory_.missing.emplace_back([this] { return Describe("soft", soft_devices_->problems()); });
  inventory_.engine_objects = [this] { return soft_devices_->ports(); };
  inventory_.shared_counters.push_back(
      {"soft", [this] { return soft_devices_->SharedCounters(); }});
  inventory_.shared_counters.push_back(
      {"cm", [this] { return soft::Describe(soft_manager_->counters()); }});
  return absl::OkStatus();
}

absl::Status Stack::BuildSoftPaths(const control::SoftConfig& config) {
  soft::TransportConfig transport;
  transport.ecn = config.ecn;
  for (const auto& engine : engines_) {
    RD_ASSIGN_OR_RETURN(std::unique_ptr<soft::SoftDataPath> path,
                        soft::SoftDataPath::Create(mads_->AddRing(), engine->async_sink(),
                                                   transport));
    engine->AddDataPath(path.get());
    soft_paths_.push_back(std::move(path));
  }
  if (engines_.size() == 1) return absl::OkStatus();
  while (stray_rings_.size() < engines_.size()) {
    RD_ASSIGN_OR_RETURN(std::unique_ptr<soft::StrayRing> ring, soft::StrayRing::Create());
    stray_rings_.push_back(std::move(ring));
  }
  const auto keys = std::make_shared<soft::MrKeys>();
  for (uint32_t index = 0; index < soft_paths_.size(); ++index) {
    RD_RETURN_IF_ERROR(soft_paths_[index]->JoinEngines(index, PointersTo(stray_rings_), keys));
  }
  return absl::OkStatus();
}

// `automatic`: without configuration, addresses of verbs devices are left alone.
soft::SoftDevicesHooks Stack::SoftHooks(bool automatic) {
  soft::SoftDevicesHooks hooks;
  if (automatic && verbs_devices_ != nullptr) {
    hooks.read_interfaces = [this]() -> absl::StatusOr<std::vector<soft::NetInterface>> {
      RD_ASSIGN_OR_RETURN(std::vector<soft::NetInterface> interfaces, soft::ReadInterfaces());
      for (soft::NetInterface& interface : interfaces) {
        std::erase_if(interface.addresses, [this](const soft::NetAddress& one) {
          return verbs_devices_->FindByAddress(one.address) != nullptr;
        });
      }
      return interfaces;
    };
    verbs_devices_->SetAddressHook([this] { soft_devices_->LookSoon(); });
  }
  hooks.activate = [this](uint32_t engine, device::EngineObject& object,
                          std::function<void()> done) {
    engines_[engine]->proxy().Activate(object, std::move(done));
  };
  hooks.deactivate = [this](uint32_t engine, device::EngineObject& object,
                            std::function<void()> done) {
    engines_[engine]->proxy().Deactivate(object, std::move(done));
  };
  hooks.on_device_removed = [this](soft::SoftDevice& device) {
    soft_manager_->OnDeviceRemoved(&device);
  };
  hooks.on_address_changed = [this](const IpAddress& address) {
    soft_manager_->OnAddressChanged(address);
  };
  hooks.on_problem = [](const soft::SoftDeviceProblem& problem) {
    control::Log("device").warn("not usable kind=soft what={} why=\"{}\"", problem.what,
                                problem.why);
  };
  return hooks;
}

absl::Status Stack::JoinManagers() {
  std::vector<device::ConnectionManager*> managers;
  if (verbs_manager_ != nullptr) managers.push_back(verbs_manager_.get());
  if (soft_manager_ != nullptr) managers.push_back(soft_manager_.get());
  if (managers.size() > 1) {
    RD_ASSIGN_OR_RETURN(
        managers_, device::MultiConnectionManager::Create(managers, soft::KernelSourceAddressFor));
    managers = {managers_.get()};
  }
  inventory_.managers = managers;
  return absl::OkStatus();
}

}  // namespace rdmad
