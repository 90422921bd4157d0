#include "daemon/device/verbs/verbs_devices.h"

#include <infiniband/verbs.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::verbs {
namespace {

struct FreeList {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};
using DeviceListPtr = std::unique_ptr<ibv_device*, FreeList>;

// A WR's addresses are the application's and mean nothing in this process. Drivers that put short
// messages into the completion and copy them on from there would write to them.
void ForbidScatterToCqe() {
  ::setenv("MLX5_SCATTER_TO_CQE", "0", 1);
}

// Null: nothing speaks against it.
const char* WhyNotServed(const ibv_device& device) {
  if (std::string_view(device.name).starts_with("hns_")) {
    return "its driver copies received bytes itself and would use the application's addresses in "
           "the daemon; not served";
  }
  // rdma_cm moves its queue pairs itself, those of the process that connects. Ours are a session's.
  if (device.transport_type == IBV_TRANSPORT_IWARP) {
    return "an iWARP device (siw, irdma, cxgb4); rdmad serves RoCE and InfiniBand. "
           "Its interface is left to the soft device";
  }
  return nullptr;
}

// By sysfs, since asking the device means to open it.
int PortCount(const ibv_device& device) {
  std::error_code error;
  const std::filesystem::path ports = std::filesystem::path(device.ibdev_path) / "ports";
  int count = 1;
  while (count < UINT8_MAX && std::filesystem::exists(ports / std::to_string(count + 1), error)) {
    ++count;
  }
  return count;
}

// Whether a name is that of the kernel's device, or of one of its ports.
bool IsPortOf(std::string_view name, std::string_view ibv_name) {
  return name.starts_with(ibv_name) &&
         (name.size() == ibv_name.size() || name[ibv_name.size()] == '.');
}

bool IsOfPort(device::AsyncEventType type) {
  return type == device::AsyncEventType::kPortActive || type == device::AsyncEventType::kPortErr ||
         type == device::AsyncEventType::kGidChange;
}

}  // namespace

bool HostHasDevices() {
  int count = 0;
  const DeviceListPtr list(ibv_get_device_list(&count));
  return list != nullptr && count > 0;
}

// One context's removal, seen from its engine: kills it. Once those of all engines are dead,
// control closes what they have in common.
class VerbsDevices::Removal final : public device::EngineObject {
 public:
  explicit Removal(std::shared_ptr<OpenContext> context) : context_(std::move(context)) {}
  void Activate(device::TimeNs now) noexcept override { context_->path().Kill(*context_, now); }
  void Deactivate(device::TimeNs) noexcept override {}

 private:
  const std::shared_ptr<OpenContext> context_;
};

absl::StatusOr<std::unique_ptr<VerbsDevices>> VerbsDevices::Create(
    VerbsDevicesConfig config, std::vector<VerbsDataPath*> paths, RunOnEngine run_on_engine) {
  ForbidScatterToCqe();
  // Objects of a device that is gone can be destroyed without an error.
  ::setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
  UniqueFd epoll_fd(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd idle_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_fd.valid() || !idle_fd.valid()) {
    return absl::ErrnoToStatus(errno, "verbs: epoll_create1, eventfd");
  }
  RD_ASSIGN_OR_RETURN(UeventMonitor uevents, UeventMonitor::Open());
  RD_ASSIGN_OR_RETURN(device::NetMonitor network, device::NetMonitor::Open());
  std::unique_ptr<VerbsDevices> devices(
      new VerbsDevices(std::move(config), std::move(paths), std::move(run_on_engine),
                       std::move(epoll_fd), std::move(idle_fd), std::move(uevents),
                       std::move(network)));
  for (const int fd :
       {devices->uevents_.fd(), devices->network_.fd(), devices->idle_fd_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(devices->epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::ErrnoToStatus(errno, "verbs: epoll_ctl");
    }
  }
  devices->Rescan();
  for (const std::string& name : devices->config_.only) {
    if (std::none_of(devices->devices_.begin(), devices->devices_.end(),
                     [&name](const auto& device) {
                       return name == device->name() || name == device->ibv_name();
                     }) &&
        std::none_of(devices->problems_.begin(), devices->problems_.end(),
                     [&name](const auto& problem) { return problem.what == name; })) {
      devices->problems_.push_back(
          {name, "no such RDMA device; see `ibv_devices`. It will be served once it is there"});
    }
  }
  return devices;
}

VerbsDevices::VerbsDevices(VerbsDevicesConfig config, std::vector<VerbsDataPath*> paths,
                           RunOnEngine run_on_engine, UniqueFd epoll_fd, UniqueFd idle_fd,
                           UeventMonitor uevents, device::NetMonitor network)
    : config_(std::move(config)),
      paths_(std::move(paths)),
      run_on_engine_(std::move(run_on_engine)),
      epoll_fd_(std::move(epoll_fd)),
      idle_fd_(std::move(idle_fd)),
      uevents_(std::move(uevents)),
      network_(std::move(network)) {}

VerbsDevices::~VerbsDevices() = default;

void VerbsDevices::SetConnectionManager(VerbsConnectionManager* manager) {
  manager_ = manager;
  OpenConnectionManager();
}

void VerbsDevices::OpenConnectionManager() {
  constexpr char kWhat[] = "rdma_cm";
  if (manager_ == nullptr || devices().empty()) return;
  std::erase_if(problems_,
                [&](const VerbsDeviceProblem& problem) { return problem.what == kWhat; });
  if (absl::Status opened = manager_->Open(); !opened.ok()) {
    problems_.push_back({kWhat, std::string(opened.message())});
  }
}

std::vector<device::Device*> VerbsDevices::devices() const {
  std::vector<device::Device*> present;
  for (const auto& device : devices_) {
    if (!device->removed()) present.push_back(device.get());
  }
  return present;
}

device::Device* VerbsDevices::FindPort(std::string_view ibv_name, uint8_t port) const {
  for (const auto& device : devices_) {
    if (!device->removed() && device->ibv_name() == ibv_name && device->port() == port) {
      return device.get();
    }
  }
  return nullptr;
}

device::Device* VerbsDevices::FindByAddress(const IpAddress& address) const {
  for (const auto& device : devices_) {
    if (device->removed()) continue;
    for (const device::GidEntry& gid : device->Gids()) {
      // A link-local address without a scope is none of ours in particular.
      if (gid.address.gid() == address.gid() &&
          (!address.is_link_local() || gid.address.scope_id() == address.scope_id())) {
        return device.get();
      }
    }
  }
  return nullptr;
}

void VerbsDevices::Close(std::shared_ptr<OpenHardware> hardware) {
  const bool closed = hardware->CloseHardware([fd = idle_fd_.get()] {
    constexpr uint64_t kOne = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd, &kOne, sizeof(kOne));
  });
  if (!closed) closing_.push_back(std::move(hardware));
}

void VerbsDevices::Poll() {
  uint64_t idle;
  if (::read(idle_fd_.get(), &idle, sizeof(idle)) == sizeof(idle)) {
    for (std::shared_ptr<OpenHardware>& hardware : std::exchange(closing_, {})) {
      Close(std::move(hardware));
    }
  }
  std::erase_if(devices_, [](const auto& device) { return device->removed(); });
  const bool rescan = uevents_.Take();
  const bool network_changed = network_.Take();
  bool changed = rescan || network_changed;
  for (size_t i = 0; i < devices_.size(); ++i) {
    VerbsDevice& device = *devices_[i];
    if (device.removed()) continue;
    if (network_changed && !rescan) device.Refresh();
    const std::vector<device::AsyncEventType> events = device.TakeAsyncEvents();
    changed |= !events.empty();
    for (const device::AsyncEventType event : events) {
      // Of the end, on_removed tells.
      if (IsOfPort(event) && observer_.on_event) observer_.on_event(device, event);
    }
    if (std::find(events.begin(), events.end(), device::AsyncEventType::kDeviceFatal) !=
        events.end()) {
      Remove(device);
    }
  }
  if (rescan) Rescan();
  if (changed && on_addresses_) on_addresses_();
}

bool VerbsDevices::Wanted(std::string_view ibv_name, uint8_t port) const {
  return config_.only.empty() ||
         std::any_of(config_.only.begin(), config_.only.end(), [&](const std::string& name) {
           return name == ibv_name || name == PortName(ibv_name, port);
         });
}

void VerbsDevices::Rescan() {
  int count = 0;
  const DeviceListPtr list(ibv_get_device_list(&count));
  const auto begin = list.get();
  const auto end = begin + (begin != nullptr ? count : 0);
  for (size_t i = 0; i < devices_.size(); ++i) {
    VerbsDevice& device = *devices_[i];
    if (device.removed()) continue;
    const bool there = std::any_of(begin, end, [&device](ibv_device* candidate) {
      return device.ibv_name() == ibv_get_device_name(candidate);
    });
    if (there) {
      device.Refresh();
    } else {
      Remove(device);
    }
  }
  std::erase_if(problems_, [this, begin, end](const VerbsDeviceProblem& problem) {
    return std::any_of(begin, end, [&problem](ibv_device* candidate) {
      return IsPortOf(problem.what, ibv_get_device_name(candidate));
    });
  });
  for (auto candidate = begin; candidate != end; ++candidate) Add(*candidate);
}

void VerbsDevices::Add(ibv_device* device) {
  const int count = PortCount(*device);
  for (int port = 1; port <= count; ++port) AddPort(device, static_cast<uint8_t>(port));
}

void VerbsDevices::AddPort(ibv_device* device, uint8_t port) {
  const std::string ibv_name = ibv_get_device_name(device);
  if (!Wanted(ibv_name, port) || FindPort(ibv_name, port) != nullptr) return;
  const std::string name = PortName(ibv_name, port);
  if (const char* const why = WhyNotServed(*device)) {
    problems_.push_back({name, why});
    return;
  }
  absl::StatusOr<std::unique_ptr<VerbsDevice>> opened = VerbsDevice::Open(device, port, paths_);
  if (!opened.ok()) {
    problems_.push_back({name, std::string(opened.status().message())});
    return;
  }
  VerbsDevice* const added = devices_.emplace_back(*std::move(opened)).get();
  epoll_event event{};
  event.events = EPOLLIN;
  // Out of memory: then its going is seen by the next look at the list.
  [[maybe_unused]] const int watched =
      ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, added->async_fd(), &event);
  OpenConnectionManager();
  if (observer_.on_added) observer_.on_added(*added);
}

void VerbsDevices::Remove(VerbsDevice& device) {
  const std::vector<std::shared_ptr<OpenHardware>> opened = device.opened();
  if (manager_ != nullptr) manager_->OnDeviceRemoved(device.ibv_name());
  device.SetRemoved();  // and with its descriptor the watch
  for (const std::shared_ptr<OpenHardware>& hardware : opened) {
    const std::vector<std::shared_ptr<OpenContext>> contexts = hardware->contexts();
    const auto left = std::make_shared<size_t>(contexts.size());
    for (const std::shared_ptr<OpenContext>& context : contexts) {
      const auto removal = std::make_shared<Removal>(context);
      run_on_engine_(context->path().engine(), *removal, [this, removal, left, hardware] {
        if (--*left == 0) Close(hardware);
      });
    }
  }
  if (observer_.on_removed) observer_.on_removed(device);
}

}  // namespace rdmad::verbs
