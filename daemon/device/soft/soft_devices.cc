#include "daemon/device/soft/soft_devices.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/device/soft/link_mtu.h"
#include "daemon/device/soft/transport_counters.h"

namespace rdmad::soft {

// A device to be, with the addresses that it should have.
struct SoftDevices::Wanted {
  const NetInterface* interface;
  std::vector<IpAddress> addresses;
};

namespace {

using Problems = std::vector<SoftDeviceProblem>;

bool Contains(const std::vector<IpAddress>& list, const IpAddress& address) {
  return std::find(list.begin(), list.end(), address) != list.end();
}

// The list of wanted devices while it grows. `Entry` is SoftDevices::Wanted, which is private.
template <typename Entry>
class WantedList {
 public:
  void Add(const NetInterface& interface, const IpAddress& address) {
    for (Entry& entry : entries) {
      if (entry.interface != &interface) continue;
      if (Contains(entry.addresses, address)) return;
      if (interface.loopback) continue;
      entry.addresses.push_back(address);
      return;
    }
    entries.push_back({&interface, {address}});
  }

  std::vector<Entry> entries;
};

void AddTentativeProblem(const NetInterface& interface, const IpAddress& address,
                         Problems* problems) {
  problems->push_back(
      {address.ToString(), absl::StrCat("skipped: the address on ", interface.name,
                                        " is not usable yet (duplicate address detection)")});
}

template <typename Entry>
void AddInterface(const NetInterface& interface, WantedList<Entry>* wanted, Problems* problems) {
  for (const NetAddress& one : interface.addresses) {
    if (one.tentative) {
      AddTentativeProblem(interface, one.address, problems);
      continue;
    }
    wanted->Add(interface, one.address);
  }
}

template <typename Entry>
void AddAutomatic(const std::vector<NetInterface>& interfaces, WantedList<Entry>* wanted,
                  Problems* problems) {
  for (const NetInterface& interface : interfaces) {
    if (interface.up) AddInterface(interface, wanted, problems);
  }
}

template <typename Entry>
void AddNamed(const std::string& name, const std::vector<NetInterface>& interfaces,
              WantedList<Entry>* wanted, Problems* problems) {
  const auto by_name = std::find_if(interfaces.begin(), interfaces.end(),
                                    [&name](const NetInterface& one) { return one.name == name; });
  if (by_name != interfaces.end()) {
    if (!by_name->up) {
      problems->push_back({name, "skipped: the interface is down"});
    } else if (by_name->addresses.empty()) {
      problems->push_back({name, "skipped: the interface has no address"});
    } else {
      AddInterface(*by_name, wanted, problems);
    }
    return;
  }
  const absl::StatusOr<IpAddress> address = IpAddress::Parse(name);
  if (!address.ok()) {
    problems->push_back({name, "skipped: neither an interface of this host nor an address"});
    return;
  }
  const NetInterface* interface = FindInterface(interfaces, *address);
  if (interface == nullptr) {
    const bool unscoped = address->is_link_local() && address->scope_id() == 0;
    problems->push_back(
        {name, unscoped ? "skipped: a link-local address needs its interface (address%interface)"
                        : "skipped: no interface of this host has the address"});
    return;
  }
  for (const NetAddress& one : interface->addresses) {
    if (one.address == *address && one.tentative)
      return AddTentativeProblem(*interface, *address, problems);
  }
  wanted->Add(*interface, *address);
}

}  // namespace

std::unique_ptr<SoftDevices> SoftDevices::Create(const SoftDevicesConfig& config,
                                                 std::vector<NetInterface> interfaces,
                                                 const SoftDeviceContext& context,
                                                 SoftMadIo* mads) {
  std::unique_ptr<SoftDevices> result(
      new SoftDevices(config, std::move(interfaces), context, mads));
  WantedList<Wanted> wanted;
  if (config.only.empty()) {
    AddAutomatic(result->interfaces_, &wanted, &result->problems_);
  } else {
    for (const std::string& name : config.only)
      AddNamed(name, result->interfaces_, &wanted, &result->problems_);
  }
  for (const Wanted& entry : wanted.entries) result->AddDevice(entry);
  return result;
}

SoftDevices::SoftDevices(const SoftDevicesConfig& config, std::vector<NetInterface> interfaces,
                         const SoftDeviceContext& context, SoftMadIo* mads)
    : config_(config), interfaces_(std::move(interfaces)), context_(context), mads_(mads) {}

SoftDevices::~SoftDevices() {
  for (const auto& device : devices_) {
    for (const auto& port : device->ports()) mads_->RemovePort(&port->udp());
  }
}

void SoftDevices::AddDevice(const Wanted& wanted) {
  const NetInterface& interface = *wanted.interface;
  if (!PathMtuOf(interface.mtu_bytes).has_value()) {
    return AddProblem(
        interface.name,
        absl::StrCat("skipped: MTU ", interface.mtu_bytes, " is too small, RoCE needs ",
                     device::MtuBytes(device::Mtu::k256) + kLinkOverheadBytes));
  }
  SoftDeviceInfo info;
  info.name = absl::StrCat("soft", devices_.size());
  info.netdev = interface.name;
  info.mtu_bytes = interface.mtu_bytes;
  info.active = interface.running;
  info.node_guid = MakeNodeGuid(interface.mac, wanted.addresses.front());
  auto device = std::make_unique<SoftDevice>(context_, info);
  for (const IpAddress& address : wanted.addresses) {
    auto udp = UdpPort::Open(address, config_.udp_port, config_.socket);
    const absl::Status status = udp.ok() ? device->AddPort(*std::move(udp)) : udp.status();
    if (!status.ok()) {
      AddProblem(address.ToString(), absl::StrCat(std::string(status.message()), "; skipped"));
    }
  }
  if (device->ports().empty()) return;
  for (const auto& port : device->ports()) mads_->AddPort(&port->udp());
  devices_.push_back(std::move(device));
}

void SoftDevices::AddProblem(const std::string& what, const std::string& why) {
  problems_.push_back({what, why});
}

std::vector<device::EngineObject*> SoftDevices::ports() const {
  std::vector<device::EngineObject*> all;
  for (const auto& device : devices_) {
    for (const auto& port : device->ports()) all.push_back(port.get());
  }
  return all;
}

std::vector<device::CounterValue> SoftDevices::SharedCounters() const {
  std::vector<device::CounterValue> all = context_.path->transport().counters().Snapshot();
  const std::vector<device::CounterValue> mads = mads_->Counters();
  all.insert(all.end(), mads.begin(), mads.end());
  return all;
}

device::Device* SoftDevices::FindByAddress(const IpAddress& address) const {
  for (const auto& device : devices_) {
    for (const auto& port : device->ports()) {
      if (port->udp().local() == address) return device.get();
    }
  }
  return nullptr;
}

std::vector<IpAddress> SoftDevices::Addresses() const {
  std::vector<IpAddress> all;
  for (const auto& device : devices_) {
    for (const auto& port : device->ports()) all.push_back(port->udp().local());
  }
  return all;
}

absl::StatusOr<IpAddress> SoftDevices::SourceAddressFor(const IpAddress& peer) const {
  absl::StatusOr<IpAddress> kernels = KernelSourceAddressFor(peer);
  if (!kernels.ok() || FindByAddress(*kernels) != nullptr) return kernels;
  // To itself the kernel sends from the same address, but on loopback.
  if (FindByAddress(peer) != nullptr) return peer;
  const NetInterface* interface = FindInterface(interfaces_, *kernels);
  if (interface == nullptr) return kernels;
  for (const IpAddress& ours : Addresses()) {
    if (interface->Has(ours) && ours.is_v4() == kernels->is_v4() &&
        ours.is_link_local() == kernels->is_link_local()) {
      return ours;
    }
  }
  return kernels;
}

}  // namespace rdmad::soft
