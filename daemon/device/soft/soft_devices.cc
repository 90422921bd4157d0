#include "daemon/device/soft/soft_devices.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/link_mtu.h"
#include "daemon/device/soft/link_rate.h"
#include "daemon/device/soft/qp_table.h"
#include "daemon/device/soft/qpn_allocator.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/transport_counters.h"
#include "daemon/device/soft/transport_qp.h"
#include "daemon/device/soft/ud_qp.h"
#include "daemon/device/soft/udp_port_group.h"

namespace rdmad::soft {
namespace {

template <typename T>
bool Contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

const NetInterface* FindByIndex(const std::vector<NetInterface>& interfaces, uint32_t index) {
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [index](const auto& one) { return one.index == index; });
  return found == interfaces.end() ? nullptr : &*found;
}

SoftLink LinkOf(const NetInterface& interface) {
  return {interface.name, interface.mtu_bytes, interface.running, interface.index,
          LinkRateOf(InterfaceMbps(interface.name))};
}

std::vector<IpAddress> AddressesOf(const SoftDevice& device) {
  std::vector<IpAddress> all;
  for (const auto& port : device.ports()) all.push_back(port->local());
  return all;
}

}  // namespace

// Moves the QPs that a device that has gone has on one engine to error. By number: a QP that its owner
// has given back meanwhile is not found any more.
class SoftDevices::FlushQps final : public device::EngineObject {
 public:
  FlushQps(Transport& transport, std::vector<uint32_t> qpns)
      : transport_(transport), qpns_(std::move(qpns)) {}
  void Activate(device::TimeNs now) noexcept override {
    device::QpAttr to_error;
    to_error.mask = device::kQpAttrState;
    to_error.state = device::QpState::kErr;
    for (const uint32_t qpn : qpns_) {
      const TransportQp* const qp = transport_.qps().Find(qpn);
      if (qp == nullptr) continue;
      if (qp->connected() != nullptr) {
        qp->connected()->EnterError(now);
      } else {
        // Refused in RESET, where there is nothing to flush.
        (void)qp->datagram()->Modify(to_error, now);
      }
    }
  }
  void Deactivate(device::TimeNs) noexcept override {}

 private:
  Transport& transport_;
  const std::vector<uint32_t> qpns_;
};

absl::StatusOr<std::unique_ptr<SoftDevices>> SoftDevices::Create(const SoftDevicesConfig& config,
                                                                 const SoftDeviceContext& context,
                                                                 SoftMadIo* mads,
                                                                 SoftDevicesHooks hooks) {
  // First, so that no change is missed.
  RD_ASSIGN_OR_RETURN(device::NetMonitor monitor, device::NetMonitor::Open());
  std::unique_ptr<SoftDevices> devices(
      new SoftDevices(config, context, mads, std::move(hooks), std::move(monitor)));
  RD_RETURN_IF_ERROR(devices->Look());
  devices->live_ = true;
  return devices;
}

SoftDevices::SoftDevices(const SoftDevicesConfig& config, const SoftDeviceContext& context,
                         SoftMadIo* mads, SoftDevicesHooks hooks, device::NetMonitor monitor)
    : config_(config),
      context_(context),
      mads_(mads),
      hooks_(std::move(hooks)),
      monitor_(std::move(monitor)) {}

SoftDevices::~SoftDevices() {
  RD_CHECK(leaving_.empty(), "the engine has answered everything");
  for (const Entry& entry : entries_) {
    for (const auto& port : entry.device->ports()) mads_->RemovePort(&port->udp());
  }
}

// ---- following the network

void SoftDevices::Poll() {
  if (!monitor_.Take()) return;
  // Netlink may be out of memory for a while.
  if (!Look().ok()) monitor_.LookIn(kRetryNs);
}

absl::Status SoftDevices::Look() {
  std::erase_if(removed_, [](const auto& device) { return !device->in_use(); });
  RD_ASSIGN_OR_RETURN(interfaces_, hooks_.read_interfaces());
  const SoftSelection selection = SelectDevices(config_.only, interfaces_);
  const std::vector<SoftDeviceProblem> known = std::exchange(problems_, selection.problems);
  Apply(selection);
  if (!live_ || !hooks_.on_problem) return absl::OkStatus();
  for (const SoftDeviceProblem& problem : problems_) {
    if (!Contains(known, problem)) hooks_.on_problem(problem);
  }
  return absl::OkStatus();
}

// What goes first, so that an address may move from one interface to another.
void SoftDevices::Apply(const SoftSelection& selection) {
  RemoveDevicesThatWent();
  RemoveAddressesThatWent(selection);
  for (const SelectedDevice& selected : selection.devices) {
    if (Entry* const entry = Find(selected.key)) {
      AddAddresses(*entry, selected.addresses);
    } else {
      AddDevice(selected);
    }
  }
  for (const IpAddress& address : std::exchange(changed_, {})) {
    if (live_ && hooks_.on_address_changed) hooks_.on_address_changed(address);
  }
  for (Entry& entry : entries_) Update(entry);
}

void SoftDevices::RemoveDevicesThatWent() {
  for (size_t i = 0; i < entries_.size();) {
    if (FindByIndex(interfaces_, entries_[i].key.interface_index) != nullptr) {
      ++i;
      continue;
    }
    Entry gone = std::move(entries_[i]);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
    RemoveDevice(std::move(gone));
  }
}

void SoftDevices::RemoveDevice(Entry entry) {
  SoftDevice& device = *removed_.emplace_back(std::move(entry.device));
  if (hooks_.on_device_removed) hooks_.on_device_removed(device);
  device.SetRemoved();
  FlushQpsOf(device);
  for (const IpAddress& address : AddressesOf(device)) RetirePort(device, address);
  if (observer_.on_removed) observer_.on_removed(device);
}

void SoftDevices::FlushQpsOf(const SoftDevice& device) {
  std::vector<std::vector<uint32_t>> by_engine(context_.paths.size());
  for (const uint32_t qpn : device.Qpns()) {
    by_engine[qpn % QpnAllocator::kEngines].push_back(qpn);
  }
  for (uint32_t engine = 0; engine < by_engine.size(); ++engine) {
    const auto flush = std::make_shared<FlushQps>(context_.paths[engine]->transport(),
                                                  std::move(by_engine[engine]));
    hooks_.activate(engine, *flush, [flush] {});
  }
}

void SoftDevices::RemoveAddressesThatWent(const SoftSelection& selection) {
  for (Entry& entry : entries_) {
    const auto selected =
        std::find_if(selection.devices.begin(), selection.devices.end(),
                     [&entry](const SelectedDevice& one) { return one.key == entry.key; });
    for (const IpAddress& address : AddressesOf(*entry.device)) {
      if (selected != selection.devices.end() && Contains(selected->addresses, address)) continue;
      RetirePort(*entry.device, address);
      entry.gids_changed = true;
      changed_.push_back(address);
    }
  }
}

void SoftDevices::RetirePort(SoftDevice& device, const IpAddress& address) {
  SoftPort* const port = device.RemovePort(address);
  mads_->RemovePort(&port->udp());
  leaving_.push_back(address);
  const auto left = std::make_shared<uint32_t>(port->engines());
  for (const device::EnginePart& part : port->parts()) {
    hooks_.deactivate(part.engine, *part.object, [this, &device, port, address, left] {
      if (--*left != 0) return;
      device.ForgetPort(port);
      leaving_.erase(std::find(leaving_.begin(), leaving_.end(), address));
      // It may have come back while its old sockets were in the way.
      monitor_.LookIn(0);
    });
  }
}

// The interface's state and MTU, and word of all that has changed.
void SoftDevices::Update(Entry& entry) {
  SoftDevice& device = *entry.device;
  const bool was_active = device.QueryPort().active();
  device.SetLink(LinkOf(*FindByIndex(interfaces_, entry.key.interface_index)));
  const bool active = device.QueryPort().active();
  if (was_active && !active) Tell(device, device::AsyncEventType::kPortErr);
  if (std::exchange(entry.gids_changed, false)) Tell(device, device::AsyncEventType::kGidChange);
  if (!was_active && active) Tell(device, device::AsyncEventType::kPortActive);
}

void SoftDevices::Tell(SoftDevice& device, device::AsyncEventType event) {
  if (observer_.on_event) observer_.on_event(device, event);
}

void SoftDevices::AddDevice(const SelectedDevice& selected) {
  const NetInterface& interface = *selected.interface;
  // What a name alone cannot tell: why nothing came of it.
  if (!interface.up && !selected.by_address) {
    if (selected.by_name)
      AddProblem(interface.name, "skipped: the interface is down; taken when it is up");
    return;
  }
  if (selected.addresses.empty()) {
    if (selected.by_name)
      AddProblem(interface.name, "skipped: the interface has no address; taken when it has one");
    return;
  }
  if (!PathMtuOf(interface.mtu_bytes).has_value()) {
    return AddProblem(
        interface.name,
        absl::StrCat("skipped: MTU ", interface.mtu_bytes, " is too small, RoCE needs ",
                     device::MtuBytes(device::Mtu::k256) + kLinkOverheadBytes));
  }
  SoftDeviceInfo info;
  info.name = FreeName();
  info.link = LinkOf(interface);
  info.node_guid = MakeNodeGuid(interface.mac, selected.addresses.front());
  Entry entry{selected.key, std::make_unique<SoftDevice>(context_, info)};
  AddAddresses(entry, selected.addresses);
  if (entry.device->ports().empty()) return;
  entry.gids_changed = false;
  SoftDevice& device = *entry.device;
  entries_.push_back(std::move(entry));
  if (observer_.on_added) observer_.on_added(device);
}

void SoftDevices::AddAddresses(Entry& entry, const std::vector<IpAddress>& addresses) {
  const std::vector<IpAddress> present = AddressesOf(*entry.device);
  for (const IpAddress& address : addresses) {
    if (!Contains(present, address)) AddAddress(*entry.device, address);
  }
  entry.gids_changed |= entry.device->ports().size() != present.size();
}

void SoftDevices::AddAddress(SoftDevice& device, const IpAddress& address) {
  if (Contains(leaving_, address)) return;  // the engines' answers lead here again
  auto udp = UdpPortGroup::Open(address, config_.udp_port, config_.socket,
                                static_cast<uint32_t>(context_.paths.size()));
  const absl::Status status = udp.ok() ? device.AddPort(*std::move(udp)) : udp.status();
  if (!status.ok()) {
    AddProblem(address.ToString(), absl::StrCat(std::string(status.message()),
                                                "; skipped, and tried again from time to time"));
    return monitor_.LookIn(kRetryNs);
  }
  SoftPort& port = *device.ports().back();
  mads_->AddPort(&port.udp());
  changed_.push_back(address);
  if (!live_) return;
  for (const device::EnginePart& part : port.parts()) {
    hooks_.activate(part.engine, *part.object, [] {});
  }
}

void SoftDevices::AddProblem(const std::string& what, const std::string& why) {
  problems_.push_back({what, why});
}

SoftDevices::Entry* SoftDevices::Find(const SoftDeviceKey& key) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&key](const Entry& entry) { return entry.key == key; });
  return found == entries_.end() ? nullptr : &*found;
}

std::string SoftDevices::FreeName() const {
  for (size_t number = 0;; ++number) {
    std::string name = absl::StrCat("soft", number);
    if (std::none_of(entries_.begin(), entries_.end(),
                     [&name](const Entry& entry) { return entry.device->name() == name; })) {
      return name;
    }
  }
}

// ---- what there is

std::vector<SoftDevice*> SoftDevices::devices() const {
  std::vector<SoftDevice*> all;
  for (const Entry& entry : entries_) all.push_back(entry.device.get());
  return all;
}

std::vector<device::EnginePart> SoftDevices::ports() const {
  std::vector<device::EnginePart> all;
  for (const Entry& entry : entries_) {
    for (const auto& port : entry.device->ports()) {
      const std::vector<device::EnginePart> parts = port->parts();
      all.insert(all.end(), parts.begin(), parts.end());
    }
  }
  return all;
}

std::vector<device::CounterValue> SoftDevices::SharedCounters() const {
  std::vector<device::CounterValue> all = context_.paths.front()->transport().counters().Snapshot();
  for (size_t engine = 1; engine < context_.paths.size(); ++engine) {
    const auto more = context_.paths[engine]->transport().counters().Snapshot();
    for (size_t i = 0; i < all.size(); ++i) all[i].value += more[i].value;
  }
  const std::vector<device::CounterValue> mads = mads_->Counters();
  all.insert(all.end(), mads.begin(), mads.end());
  return all;
}

device::Device* SoftDevices::FindByAddress(const IpAddress& address) const {
  for (const Entry& entry : entries_) {
    for (const auto& port : entry.device->ports()) {
      if (port->local() == address) return entry.device.get();
    }
  }
  return nullptr;
}

std::vector<IpAddress> SoftDevices::Addresses() const {
  std::vector<IpAddress> all;
  for (const Entry& entry : entries_) {
    const std::vector<IpAddress> own = AddressesOf(*entry.device);
    all.insert(all.end(), own.begin(), own.end());
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

uint32_t SoftDevices::RouteMtuBytes(const IpAddress& local, const IpAddress& peer) const {
  const absl::StatusOr<KernelRoute> route = KernelRouteTo(peer, local);
  return route.ok() ? route->mtu_bytes : 0;
}

}  // namespace rdmad::soft
