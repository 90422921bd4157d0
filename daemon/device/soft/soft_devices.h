// The soft devices of a host: makes them from its interfaces and a little configuration, follows
// the network, and finds devices by address.
//
// One device per interface, with all its addresses as GIDs; loopback addresses get a device each
// (soft_selection.h). An address that cannot be used is no reason to fail: the others come up, the
// reason is kept as text, and it is tried again.
//
// Following the network has one way: the whole state is read, and what differs from the devices
// there are is changed. So it does not matter what hints were lost or came twice.
//   an address comes   its port is opened and activated, its GID listed
//   an address goes    its GID goes, and its port once every engine has let go of it. QPs that send
//                      from there get no answer any more and run out of retries, as on an HCA
//   link, MTU          the device's port; new connections get the new MTU
//   an interface goes  the device is removed: its QPs are moved to error. If the interface comes
//                      back, it is a new device
// A device stays as long as its interface, also without addresses.
//
// Thread: control. Owner: the daemon. The data paths, the MAD side and the allocator outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/device_source.h"
#include "daemon/device/net_monitor.h"
#include "daemon/device/soft/cm/device_directory.h"
#include "daemon/device/soft/net_config.h"
#include "daemon/device/soft/soft_device.h"
#include "daemon/device/soft/soft_mad_io.h"
#include "daemon/device/soft/soft_selection.h"
#include "daemon/device/soft/udp_socket.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

struct SoftDevicesConfig {
  // Empty: automatic, that is every interface that is up, with all its addresses, and 127.0.0.1 and
  // ::1. Else exactly these: addresses ("192.0.2.1", "fe80::1%eth0", "127.0.0.2") and names of
  // interfaces.
  std::vector<std::string> only;
  uint16_t udp_port = wire::kRoceUdpPort;
  UdpSocketOptions socket;
};

// Who the devices need and tell. The first three must be there.
struct SoftDevicesHooks {
  using OnEngine = std::function<void(uint32_t engine, device::EngineObject& object,
                                      std::function<void()> done)>;

  std::function<absl::StatusOr<std::vector<NetInterface>>()> read_interfaces = ReadInterfaces;
  // Have the engine of that index activate or deactivate an object, in the order of the calls, and
  // call `done` with its answer.
  OnEngine activate;
  OnEngine deactivate;
  // For the connection manager: a device has gone, with all its addresses; an address has come, or
  // has gone while its device stays. The directory knows already.
  std::function<void(SoftDevice& device)> on_device_removed;
  std::function<void(const IpAddress& address)> on_address_changed;
  // Something is missing that was not missing before. Not of what is missing at the start.
  std::function<void(const SoftDeviceProblem& problem)> on_problem;
};

class SoftDevices final : public DeviceDirectory, public device::DeviceSource {
 public:
  // How long until an address is tried again that could not be used.
  static constexpr int64_t kRetryNs = 5'000'000'000;

  // Reads the network and opens ports, which are live only once the engines have activated ports();
  // later ones are activated by the hook. problems() tells what is missing, devices() may be empty.
  // Errors: the kernel's, without which nothing works (no netlink, no descriptors).
  static absl::StatusOr<std::unique_ptr<SoftDevices>> Create(const SoftDevicesConfig& config,
                                                             const SoftDeviceContext& context,
                                                             SoftMadIo* mads,
                                                             SoftDevicesHooks hooks);
  // After the engines have deactivated all ports and objects, and answered.
  ~SoftDevices() override;

  // device::DeviceSource. Poll() is not to be called before ports() were activated.
  void SetObserver(Observer observer) override { observer_ = std::move(observer); }
  int poll_fd() const noexcept override { return monitor_.fd(); }
  void Poll() override;

  // Has Poll() look, soon: something that read_interfaces() looks at has changed.
  void LookSoon() { monitor_.LookIn(0); }
  // What Poll() does when it is time: reads the network and applies what is new. Errors: the
  // kernel's; then nothing has changed.
  absl::Status Look();

  // Those that are there now.
  [[nodiscard]] std::vector<SoftDevice*> devices() const;
  // Those that are not there any more and still in use; looked for when the network changes.
  [[nodiscard]] size_t kept_count() const noexcept { return removed_.size(); }
  [[nodiscard]] const std::vector<SoftDeviceProblem>& problems() const noexcept {
    return problems_;
  }
  // Every port of every device, for the engines to activate at the start and to deactivate at the
  // end. Not those that they were asked to deactivate already.
  [[nodiscard]] std::vector<device::EnginePart> ports() const;
  // What the devices share: the engines' transports, summed, and QP 1.
  [[nodiscard]] std::vector<device::CounterValue> SharedCounters() const;

  device::Device* FindByAddress(const IpAddress& address) const override;
  std::vector<IpAddress> Addresses() const override;
  // The kernel's choice if it is ours. Else the peer's own address if that is ours; else one of our
  // addresses on the same interface, of the same family and scope: for a peer on 127.0.0.3 the
  // kernel says 127.0.0.1, but the daemon may have 127.0.0.2 alone. Else the kernel's choice, of
  // which the caller will find that no device has it.
  absl::StatusOr<IpAddress> SourceAddressFor(const IpAddress& peer) const override;
  uint32_t RouteMtuBytes(const IpAddress& local, const IpAddress& peer) const override;

 private:
  class FlushQps;
  struct Entry {
    SoftDeviceKey key;
    std::unique_ptr<SoftDevice> device;
    bool gids_changed = false;  // in this look
  };

  SoftDevices(const SoftDevicesConfig& config, const SoftDeviceContext& context, SoftMadIo* mads,
              SoftDevicesHooks hooks, device::NetMonitor monitor);

  void Apply(const SoftSelection& selection);
  void RemoveDevicesThatWent();
  void RemoveDevice(Entry entry);
  void RemoveAddressesThatWent(const SoftSelection& selection);
  void Update(Entry& entry);
  void AddDevice(const SelectedDevice& selected);
  void AddAddresses(Entry& entry, const std::vector<IpAddress>& addresses);
  void AddAddress(SoftDevice& device, const IpAddress& address);
  void RetirePort(SoftDevice& device, const IpAddress& address);
  void FlushQpsOf(const SoftDevice& device);
  void AddProblem(const std::string& what, const std::string& why);
  void Tell(SoftDevice& device, device::AsyncEventType event);
  [[nodiscard]] Entry* Find(const SoftDeviceKey& key);
  [[nodiscard]] std::string FreeName() const;

  const SoftDevicesConfig config_;
  const SoftDeviceContext context_;
  SoftMadIo* const mads_;
  const SoftDevicesHooks hooks_;
  device::NetMonitor monitor_;
  Observer observer_;
  bool live_ = false;  // the ports there are were activated
  std::vector<NetInterface> interfaces_;
  std::vector<Entry> entries_;
  // Until they are not in_use() any more.
  std::vector<std::unique_ptr<SoftDevice>> removed_;
  std::vector<IpAddress> changed_;  // in this look
  std::vector<IpAddress> leaving_;  // their sockets are open until every engine has answered
  std::vector<SoftDeviceProblem> problems_;
};

}  // namespace rdmad::soft
