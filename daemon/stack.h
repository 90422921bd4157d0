// The engines, the devices and their connection managers, built from the configuration and joined to
// what the control room drives.
//
// Who serves an address: a verbs device if one has it, else the soft device. Without
// configuration, the soft device leaves such addresses alone; and it may be the only one, or there
// may be none.
//
// Each engine has a data path of its own for each kind of device; devices, which are control's, know
// them all by the engines' indices.
//
// Thread: control. Owner: main. The engines' threads are to be stopped before it goes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/control/config.h"
#include "daemon/control/inventory.h"
#include "daemon/device/multi_connection_manager.h"
#include "daemon/device/soft/cm/kernel_neighbors.h"
#include "daemon/device/soft/cm/soft_connection_manager.h"
#include "daemon/device/soft/qpn_allocator.h"
#include "daemon/device/soft/soft_data_path.h"
#include "daemon/device/soft/soft_devices.h"
#include "daemon/device/soft/soft_mad_io.h"
#include "daemon/device/soft/stray_ring.h"
#include "daemon/device/verbs/verbs_connection_manager.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_devices.h"
#include "daemon/engine/engine.h"

namespace rdmad {

class Stack {
 public:
  Stack() = default;
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack();

  // Once. Before any thread is started. Errors: what the kernel refuses; a device that cannot be
  // used is none, and stands in the inventory as missing.
  absl::Status Build(const control::Config& config);

  // The engines' threads.
  void Start();
  void Stop();
  const control::Inventory& inventory() const noexcept { return inventory_; }

 private:
  absl::Status BuildEngines(const control::EngineConfig& config);
  absl::Status BuildVerbs(const control::VerbsConfig& config);
  absl::Status BuildSoft(const control::SoftConfig& config);
  absl::Status BuildSoftPaths(const control::SoftConfig& config);
  soft::SoftDevicesHooks SoftHooks(bool automatic);
  absl::Status JoinManagers();

  // Destroyed last to first.
  std::unique_ptr<soft::SoftMadIo> mads_;
  std::vector<std::unique_ptr<soft::StrayRing>> stray_rings_;
  // By the engines' indices, all three.
  std::vector<std::unique_ptr<verbs::VerbsDataPath>> verbs_paths_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::unique_ptr<verbs::VerbsDevices> verbs_devices_;
  std::unique_ptr<verbs::VerbsConnectionManager> verbs_manager_;
  std::vector<std::unique_ptr<soft::SoftDataPath>> soft_paths_;
  std::optional<soft::QpnAllocator> qpns_;
  std::unique_ptr<soft::SoftDevices> soft_devices_;
  soft::KernelNeighbors neighbors_;
  std::unique_ptr<soft::SoftConnectionManager> soft_manager_;
  std::unique_ptr<device::MultiConnectionManager> managers_;
  control::Inventory inventory_;
};

}  // namespace rdmad
