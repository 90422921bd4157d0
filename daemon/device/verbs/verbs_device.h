// A verbs device: a port of an HCA, or the kernel's rxe, as rdma-core shows it. An HCA with several
// ports is several devices, so that a device has one port and one network, as the soft ones.
//
// It holds one ibv_context of its own, to ask for port and GIDs and to hear of changes. Contexts of
// sessions are opened beside it.
//
// Thread: control. Owner: VerbsDevices.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"

namespace rdmad::verbs {

class VerbsDevice final : public device::Device {
 public:
  // `paths` are the engines', by their index, and outlive the device. Errors: Unavailable and others
  // that say why the device cannot be served.
  static absl::StatusOr<std::unique_ptr<VerbsDevice>> Open(ibv_device* device, uint8_t port,
                                                           std::vector<VerbsDataPath*> paths);
  ~VerbsDevice() override;

  const std::string& name() const noexcept override { return name_; }
  // The kernel's device, and which of its ports.
  [[nodiscard]] const std::string& ibv_name() const noexcept { return ibv_name_; }
  [[nodiscard]] uint8_t port() const noexcept { return number_; }
  const std::string& kind() const noexcept override;
  const std::string& netdev() const noexcept override { return netdev_; }
  const device::DeviceAttr& attr() const noexcept override { return attr_; }
  // As of the last Refresh().
  device::PortAttr QueryPort() const override { return port_; }
  std::vector<device::GidEntry> Gids() const override { return gids_; }
  std::vector<uint16_t> Pkeys() const override { return pkeys_; }
  // The hardware's, from sysfs.
  std::vector<device::CounterValue> Counters() const override;
  absl::StatusOr<std::unique_ptr<device::Context>> Open(uint32_t engine) override;

  // Reads port and GIDs again. Not every driver tells of all that changes, of a new MTU for one; its
  // interface does.
  void Refresh();
  [[nodiscard]] int async_fd() const noexcept;
  // Takes what the device has to say, and refreshes. With kDeviceFatal it is going.
  std::vector<device::AsyncEventType> TakeAsyncEvents();

  // What sessions have open and is still there.
  [[nodiscard]] std::vector<std::shared_ptr<OpenHardware>> opened() const;
  // From now on it only answers that it is gone. After this the kernel has nothing of the device's
  // own context.
  void SetRemoved();
  [[nodiscard]] bool removed() const noexcept { return hw_ == nullptr; }

 private:
  void RefreshPort();
  VerbsDevice(ibv_device* device, ibv_context* hw, uint8_t port, const device::DeviceAttr& attr,
              std::vector<VerbsDataPath*> paths);
  void RefreshPkeys();

  ibv_device* const device_;  // valid while hw_ is
  ibv_context* hw_;
  const std::vector<VerbsDataPath*> paths_;
  const uint8_t number_;
  const std::string ibv_name_;
  const std::string name_;
  const device::DeviceAttr attr_;
  std::string netdev_;
  device::PortAttr port_;
  std::vector<device::GidEntry> gids_;
  std::vector<uint16_t> pkeys_;
  std::vector<std::weak_ptr<OpenHardware>> opened_;
};

}  // namespace rdmad::verbs
