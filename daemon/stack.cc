#include "daemon/stack.h"

#include <sys/random.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/control/clock.h"
#include "daemon/control/log.h"
#include "daemon/device/soft/cm/cm_counters.h"
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

}  // namespace

absl::Status Stack::Build(const control::Config& config) {
  engine::EngineOptions options;
  options.idle.max_spin_ns = int64_t{config.engine.spin_us} * 1000;
  RD_ASSIGN_OR_RETURN(engine_, engine::Engine::Create(options));
  inventory_.engines.push_back(&engine_->proxy());
  if (config.verbs.enabled) RD_RETURN_IF_ERROR(BuildVerbs(config.verbs));
  if (config.soft.enabled) RD_RETURN_IF_ERROR(BuildSoft(config.soft));
  return JoinManagers();
}

Stack::~Stack() {
  if (verbs_devices_ != nullptr) verbs_devices_->SetConnectionManager(nullptr);
}

absl::Status Stack::BuildVerbs(const control::VerbsConfig& config) {
  RD_ASSIGN_OR_RETURN(verbs_path_, verbs::VerbsDataPath::Create(engine_->async_sink()));
  RD_ASSIGN_OR_RETURN(verbs_devices_, verbs::VerbsDevices::Create(
                                          {config.devices}, verbs_path_.get(),
                                          [proxy = &engine_->proxy()](device::EngineObject& object,
                                                                      std::function<void()> done) {
                                            proxy->Activate(object, std::move(done));
                                          }));
  engine_->AddDataPath(verbs_path_.get());
  inventory_.sources.push_back(verbs_devices_.get());
  RD_ASSIGN_OR_RETURN(verbs_manager_, verbs::VerbsConnectionManager::Create(verbs_devices_.get()));
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
  RD_ASSIGN_OR_RETURN(soft_path_,
                      soft::SoftDataPath::Create(mads_->AddRing(), engine_->async_sink()));
  engine_->AddDataPath(soft_path_.get());
  qpns_.emplace(RandomSeed());
  soft::SoftDeviceContext context;
  context.path = soft_path_.get();
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
  }
  engine::EngineProxy* const engine = &engine_->proxy();
  hooks.activate = [engine](device::EngineObject& object, std::function<void()> done) {
    engine->Activate(object, std::move(done));
  };
  hooks.deactivate = [engine](device::EngineObject& object, std::function<void()> done) {
    engine->Deactivate(object, std::move(done));
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
