// A soft device: one interface's addresses (or one loopback address) as an RDMA device.
//
// It makes the objects, keeps the limits that it advertises, and hands out the numbers; what the
// objects then do is the transport's business. QP numbers and the counts behind the limits come
// back when an object is destroyed, whenever that is: objects hold a lease on them and share what
// they need of the device, so they may even outlive it.
//
// Thread: control. Owner: SoftDevices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/qpn_allocator.h"
#include "daemon/device/soft/soft_data_path.h"

namespace rdmad::soft {

// What all soft devices on one engine share. The pointers outlive the devices and their objects.
struct SoftDeviceContext {
  SoftDataPath* path = nullptr;
  QpnAllocator* qpns = nullptr;
  uint32_t engine_index = 0;              // below QpnAllocator::kEngines
  std::function<device::TimeNs()> clock;  // for the QP numbers' quarantine
};

struct SoftDeviceInfo {
  std::string name;        // "soft0"
  std::string netdev;      // interface
  uint32_t mtu_bytes = 0;  // of the interface; large enough for RoCE (link_mtu.h)
  bool active = true;      // the interface is up and has a carrier
  uint64_t node_guid = 0;  // not zero
};

// From a link-layer address as EUI-64, else a hash of the address; the same at every start and
// never zero. Source: IEEE Guidelines for EUI; RFC 4291, Appendix A.
uint64_t MakeNodeGuid(const std::vector<uint8_t>& mac, const IpAddress& first_address) noexcept;

class SoftDevice final : public device::Device {
 public:
  SoftDevice(const SoftDeviceContext& context, const SoftDeviceInfo& info);
  ~SoftDevice() override;

  // Takes an opened port, whose address becomes the next GID. Before the engine activates it.
  // Errors: ResourceExhausted (GID table full; says the limit).
  absl::Status AddPort(std::unique_ptr<UdpPort> udp);
  // For the engine to activate before first use, and to deactivate before destruction.
  [[nodiscard]] const std::vector<std::unique_ptr<SoftPort>>& ports() const noexcept {
    return ports_;
  }

  const std::string& name() const noexcept override { return info_.name; }
  const std::string& kind() const noexcept override;
  const std::string& netdev() const noexcept override { return info_.netdev; }
  const device::DeviceAttr& attr() const noexcept override { return attr_; }
  device::PortAttr QueryPort() const override;
  std::vector<device::GidEntry> Gids() const override;
  // Of this device's UDP ports. The transport's, which all soft devices of an engine share, are
  // SoftDevices'.
  std::vector<device::CounterValue> Counters() const override;

  absl::StatusOr<std::unique_ptr<device::Context>> Open() override;
  // What every context makes: soft objects are told apart by their PD alone.
  absl::StatusOr<std::unique_ptr<device::Pd>> AllocPd();
  absl::StatusOr<std::unique_ptr<device::Mr>> RegisterMr(device::Pd& pd,
                                                         const device::MrInit& init);
  absl::StatusOr<std::unique_ptr<device::Mw>> AllocMw(device::Pd& pd);
  absl::StatusOr<std::unique_ptr<device::Cq>> CreateCq(uint32_t depth,
                                                       device::CompletionSink* sink);
  absl::StatusOr<std::unique_ptr<device::Qp>> CreateQp(device::Pd& pd, const device::QpInit& init);
  absl::StatusOr<std::unique_ptr<device::Srq>> CreateSrq(device::Pd& pd,
                                                         const device::SrqInit& init);
  absl::StatusOr<std::unique_ptr<device::Ah>> CreateAh(device::Pd& pd,
                                                       const device::AddressVector& av);
  absl::StatusOr<std::unique_ptr<device::EngineObject>> AttachMulticast(device::Qp& qp,
                                                                        const IpAddress& group);

 private:
  struct Shared;  // with the objects

  const SoftDeviceContext context_;
  const SoftDeviceInfo info_;
  const device::DeviceAttr attr_;
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<SoftPort>> ports_;
};

}  // namespace rdmad::soft
