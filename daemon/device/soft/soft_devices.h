// Makes the soft devices of a host from its interfaces and a little configuration, and finds them
// by address.
//
// One device per interface, with all its addresses as GIDs; loopback addresses get a device each,
// so that two daemons can share a host on 127.0.0.2 and 127.0.0.3. An address that cannot be used
// is no reason to fail: the others come up, and the reason is kept as text.
//
// Thread: control. Owner: the daemon. The data path, the MAD side and the allocator outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/device/soft/cm/device_directory.h"
#include "daemon/device/soft/net_config.h"
#include "daemon/device/soft/soft_device.h"
#include "daemon/device/soft/soft_mad_io.h"
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

// Why something that was wanted is not there.
struct SoftDeviceProblem {
  std::string what;  // address or interface
  std::string why;   // one line, with what to do
};

class SoftDevices final : public DeviceDirectory {
 public:
  // `interfaces` is what ReadInterfaces() returned. Ports are opened here, but live only once the
  // engine has activated ports(). Never fails as a whole; problems() tells what is missing,
  // devices() may be empty.
  static std::unique_ptr<SoftDevices> Create(const SoftDevicesConfig& config,
                                             std::vector<NetInterface> interfaces,
                                             const SoftDeviceContext& context, SoftMadIo* mads);
  // After the engine has deactivated all ports and objects.
  ~SoftDevices() override;

  [[nodiscard]] const std::vector<std::unique_ptr<SoftDevice>>& devices() const noexcept {
    return devices_;
  }
  [[nodiscard]] const std::vector<SoftDeviceProblem>& problems() const noexcept {
    return problems_;
  }
  // Every port of every device, for the engine to activate and deactivate.
  [[nodiscard]] std::vector<device::EngineObject*> ports() const;
  // What the devices share: transport and QP 1.
  [[nodiscard]] std::vector<device::CounterValue> SharedCounters() const;

  device::Device* FindByAddress(const IpAddress& address) const override;
  std::vector<IpAddress> Addresses() const override;
  // The kernel's choice if it is ours. Else the peer's own address if that is ours; else one of our
  // addresses on the same interface, of the same family and scope: for a peer on 127.0.0.3 the
  // kernel says 127.0.0.1, but the daemon may have 127.0.0.2 alone. Else the kernel's choice, of
  // which the caller will find that no device has it.
  absl::StatusOr<IpAddress> SourceAddressFor(const IpAddress& peer) const override;

 private:
  struct Wanted;

  SoftDevices(const SoftDevicesConfig& config, std::vector<NetInterface> interfaces,
              const SoftDeviceContext& context, SoftMadIo* mads);
  void AddDevice(const Wanted& wanted);
  void AddProblem(const std::string& what, const std::string& why);

  const SoftDevicesConfig config_;
  const std::vector<NetInterface> interfaces_;
  const SoftDeviceContext context_;
  SoftMadIo* const mads_;
  std::vector<std::unique_ptr<SoftDevice>> devices_;
  std::vector<SoftDeviceProblem> problems_;
};

}  // namespace rdmad::soft
