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
#include "daemon/device/soft/soft_port.h"
#include "daemon/device/soft/udp_port_group.h"

namespace rdmad::soft {

// What all soft devices share. The pointers outlive the devices and their objects.
struct SoftDeviceContext {
  std::vector<SoftDataPath*> paths;  // the engines', by their index; at most QpnAllocator::kEngines
  QpnAllocator* qpns = nullptr;
  std::function<device::TimeNs()> clock;  // for the QP numbers' quarantine
};

// What the device's interface is like now.
struct SoftLink {
  std::string netdev;      // its name
  uint32_t mtu_bytes = 0;  // below what RoCE needs (link_mtu.h) the port is not active
  bool running = true;     // it is up and has a carrier
  uint32_t index = 0;      // the interface's, which stays when its name changes
  device::LinkRate rate{};
};

struct SoftDeviceInfo {
  std::string name;  // "soft0"
  SoftLink link;
  uint64_t node_guid = 0;  // not zero
};

// From a link-layer address as EUI-64, else a hash of the address; the same at every start and
// never zero. Source: IEEE Guidelines for EUI; RFC 4291, Appendix A.
uint64_t MakeNodeGuid(const std::vector<uint8_t>& mac, const IpAddress& first_address) noexcept;

class SoftDevice final : public device::Device {
 public:
  SoftDevice(const SoftDeviceContext& context, const SoftDeviceInfo& info);
  ~SoftDevice() override;

  // Takes opened ports, one per engine, whose address becomes the next GID. Before the engines
  // activate them. Errors: ResourceExhausted (GID table full; says the limit).
  absl::Status AddPort(std::unique_ptr<UdpPortGroup> udp);
  // Takes a port out of ports(), and its address out of the GIDs: QPs that send from there are not
  // heard any more. The device keeps it until the engines have deactivated it and ForgetPort() is
  // called. Null if no port has the address.
  SoftPort* RemovePort(const IpAddress& address);
  void ForgetPort(SoftPort* port);
  // From now on new connections have this MTU; QPs that exist keep theirs.
  void SetLink(const SoftLink& link);
  // The interface has gone. From now on nothing can be made on the device. Its ports are to be
  // removed by RemovePort(), and its QPs, which stay, to be moved to error by their engines.
  void SetRemoved() noexcept { removed_ = true; }
  [[nodiscard]] bool removed() const noexcept { return removed_; }
  // A context is open on it, or the engine has a port of it.
  [[nodiscard]] bool in_use() const noexcept {
    return contexts_.use_count() > 1 || !ports_.empty() || !leaving_.empty();
  }
  // Numbers of the QPs that exist.
  [[nodiscard]] std::vector<uint32_t> Qpns() const;
  // For the engines to activate before first use, and to deactivate before destruction.
  [[nodiscard]] const std::vector<std::unique_ptr<SoftPort>>& ports() const noexcept {
    return ports_;
  }

  const std::string& name() const noexcept override { return info_.name; }
  const std::string& kind() const noexcept override;
  const std::string& netdev() const noexcept override { return info_.link.netdev; }
  const device::DeviceAttr& attr() const noexcept override { return attr_; }
  device::PortAttr QueryPort() const override;
  std::vector<device::GidEntry> Gids() const override;
  // Of this device's UDP ports, those that have gone included. The transports', which all soft devices
  // share, are SoftDevices'.
  std::vector<device::CounterValue> Counters() const override;

  absl::StatusOr<std::unique_ptr<device::Context>> Open(uint32_t engine) override;
  // What every context makes, on its engine: soft objects are told apart by their PD alone.
  absl::StatusOr<std::unique_ptr<device::Pd>> AllocPd();
  absl::StatusOr<std::unique_ptr<device::Mr>> RegisterMr(device::Pd& pd,
                                                         const device::MrInit& init,
                                                         uint32_t engine = 0);
  absl::StatusOr<std::unique_ptr<device::Mw>> AllocMw(device::Pd& pd, uint32_t engine = 0);
  absl::StatusOr<std::unique_ptr<device::Cq>> CreateCq(uint32_t depth,
                                                       device::CompletionSink* sink);
  absl::StatusOr<std::unique_ptr<device::Qp>> CreateQp(device::Pd& pd, const device::QpInit& init,
                                                       uint32_t engine = 0);
  absl::StatusOr<std::unique_ptr<device::Srq>> CreateSrq(device::Pd& pd,
                                                         const device::SrqInit& init,
                                                         uint32_t engine = 0);
  absl::StatusOr<std::unique_ptr<device::Ah>> CreateAh(device::Pd& pd,
                                                       const device::AddressVector& av);
  absl::StatusOr<std::unique_ptr<device::EngineObject>> AttachMulticast(device::Qp& qp,
                                                                        const IpAddress& group,
                                                                        uint32_t engine = 0);
  // What another engine than the one that they were made for has of them.
  std::unique_ptr<device::EngineObject> PartOf(const device::Mr& mr, uint32_t engine);
  std::unique_ptr<device::EngineObject> PartOf(const device::Mw& mw, uint32_t engine);

 private:
  struct Shared;  // with the objects

  absl::Status CheckPresent(const char* what) const;
  void AddCounters(const SoftPort& port, std::vector<device::CounterValue>* sums,
                   uint64_t* socket_drops) const;

  const SoftDeviceContext context_;
  SoftDeviceInfo info_;
  const device::DeviceAttr attr_;
  bool removed_ = false;
  const std::shared_ptr<void> contexts_;  // each has a copy
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<SoftPort>> ports_;
  std::vector<std::unique_ptr<SoftPort>> leaving_;  // until the engines have let go of them
  // Of ports that have gone.
  std::vector<device::CounterValue> past_counters_;
  uint64_t past_socket_drops_ = 0;
};

}  // namespace rdmad::soft
