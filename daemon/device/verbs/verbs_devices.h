// The verbs devices of a host: finds them, follows what comes and goes, and serves those that the
// configuration names.
//
// A device that goes takes this way: the kernel says so (an async event, or the device is no longer
// in the list); observers hear OnDeviceRemoved(); the engine kills what sessions have of it; then
// everything the kernel has of ours is closed, which it may be waiting for: as soon as no other
// thread is in a call to it. A device that comes back, under whatever name, is a new device.
//
// Thread: control. Owner: main. The data paths outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/device/device_source.h"
#include "daemon/device/net_monitor.h"
#include "daemon/device/verbs/device_finder.h"
#include "daemon/device/verbs/uevent_monitor.h"
#include "daemon/device/verbs/verbs_connection_manager.h"
#include "daemon/device/verbs/verbs_data_path.h"
#include "daemon/device/verbs/verbs_device.h"

namespace rdmad::verbs {

// Whether the kernel has any RDMA device now. Thread: any.
bool HostHasDevices();

struct VerbsDevicesConfig {
  // Names: of a device with all its ports ("mlx4_0"), or of a port beyond the first ("mlx4_0.2").
  // Empty: all there are.
  std::vector<std::string> only;
};

// Why something that is there, or was wanted, is not served.
struct VerbsDeviceProblem {
  std::string what;
  std::string why;  // one line, with what to do
};

class VerbsDevices final : public DeviceFinder, public device::DeviceSource {
 public:
  // Has the engine of that index activate `object` and calls `done` with its answer. The object lives
  // until then.
  using RunOnEngine = std::function<void(uint32_t engine, device::EngineObject& object,
                                         std::function<void()> done)>;

  // Looks at once; no device at all is no error. To be called before other threads are started.
  // `paths` are the engines', by their index.
  // Errors: the kernel's (no descriptors).
  static absl::StatusOr<std::unique_ptr<VerbsDevices>> Create(VerbsDevicesConfig config,
                                                              std::vector<VerbsDataPath*> paths,
                                                              RunOnEngine run_on_engine);
  ~VerbsDevices() override;

  // device::DeviceSource
  void SetObserver(Observer observer) override { observer_ = std::move(observer); }
  int poll_fd() const noexcept override { return epoll_fd_.get(); }
  void Poll() override;

  // Called, from Poll(), when FindByAddress() may have another answer than before.
  void SetAddressHook(std::function<void()> hook) { on_addresses_ = std::move(hook); }

  // It is opened when there is a device, now or later, and hears of those that go. To be taken back
  // (null) before it is destroyed.
  void SetConnectionManager(VerbsConnectionManager* manager);

  // Those that are there now.
  [[nodiscard]] std::vector<device::Device*> devices() const;
  // Those that are not there any more.
  [[nodiscard]] size_t kept_count() const noexcept { return devices_.size() - devices().size(); }
  [[nodiscard]] const std::vector<VerbsDeviceProblem>& problems() const noexcept {
    return problems_;
  }
  device::Device* FindPort(std::string_view ibv_name, uint8_t port) const override;
  device::Device* FindByAddress(const IpAddress& address) const override;

 private:
  class Removal;

  VerbsDevices(VerbsDevicesConfig config, std::vector<VerbsDataPath*> paths,
               RunOnEngine run_on_engine, UniqueFd epoll_fd, UniqueFd idle_fd,
               UeventMonitor uevents, device::NetMonitor network);

  bool Wanted(std::string_view ibv_name, uint8_t port) const;
  // Adds what is new in the kernel's list and removes what is no longer there.
  void Rescan();
  void Add(ibv_device* device);
  void AddPort(ibv_device* device, uint8_t port);
  void Remove(VerbsDevice& device);
  void OpenConnectionManager();
  void Close(std::shared_ptr<OpenHardware> hardware);

  const VerbsDevicesConfig config_;
  const std::vector<VerbsDataPath*> paths_;
  const RunOnEngine run_on_engine_;
  const UniqueFd epoll_fd_;
  const UniqueFd idle_fd_;  // of those in closing_, one may be closed now
  UeventMonitor uevents_;
  device::NetMonitor network_;
  Observer observer_;
  std::function<void()> on_addresses_;
  VerbsConnectionManager* manager_ = nullptr;
  std::vector<VerbsDeviceProblem> problems_;
  std::vector<std::shared_ptr<OpenHardware>> closing_;  // another thread was in a call
  // Removed ones too, until the next Poll(): who is told of one may look at it.
  std::vector<std::unique_ptr<VerbsDevice>> devices_;
};

}  // namespace rdmad::verbs
