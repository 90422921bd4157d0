#include "daemon/device/verbs/open_context.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/non_blocking.h"

namespace rdmad::verbs {
namespace {

std::string MemlockText() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "the device or the kernel has no more memory";
  }
  return absl::StrCat("locked memory may be short: RLIMIT_MEMLOCK=", limit.rlim_cur,
                      " bytes; set LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`");
}

}  // namespace

absl::Status VerbsError(const std::string& operation, const std::string& device, int error) {
  const std::string what = absl::StrCat(operation, ": device ", device, ": ", std::strerror(error));
  switch (error) {
    case ENOMEM:
    case EAGAIN:
      return absl::ResourceExhaustedError(absl::StrCat(what, ": ", MemlockText()));
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(what);
    case EIO:
    case ENODEV:
      return absl::UnavailableError(absl::StrCat(what, ": the device was removed"));
    case EOPNOTSUPP:
    case ENOSYS:
      return absl::UnimplementedError(what);
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(what);
    default:
      return absl::InvalidArgumentError(what);
  }
}

std::string PortName(std::string_view ibv_name, uint8_t port) {
  std::string name(ibv_name);
  if (port != 1) absl::StrAppend(&name, ".", port);
  return name;
}

OpenHardware::OpenHardware(ibv_context* hw, uint8_t port, const device::DeviceAttr& attr)
    : hw_(hw), port_(port), name_(PortName(ibv_get_device_name(hw->device), port)), attr_(attr) {}

OpenHardware::~OpenHardware() {
  for (const auto& set : objects_) RD_CHECK(set.empty(), "objects go before their context");
  RD_CHECK(CloseHardware(), "nobody is at work on what does not exist");
}

bool OpenHardware::CloseHardware(std::function<void()> when_idle) {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (uses_ != 0) {
      when_idle_ = std::move(when_idle);
      return false;
    }
  }
  for (auto& set : objects_) {
    for (HardwareObject* const object : set) object->CloseHardware();
  }
  for (const std::shared_ptr<OpenContext>& context : contexts()) context->CloseChannel();
  if (hw_ != nullptr) ibv_close_device(std::exchange(hw_, nullptr));
  return true;
}

std::vector<std::shared_ptr<OpenContext>> OpenHardware::contexts() const {
  std::vector<std::shared_ptr<OpenContext>> all;
  for (const std::weak_ptr<OpenContext>& context : contexts_) {
    if (std::shared_ptr<OpenContext> present = context.lock()) all.push_back(std::move(present));
  }
  return all;
}

bool OpenHardware::Enter() {
  const std::lock_guard lock(mutex_);
  if (closing_) return false;
  ++uses_;
  return true;
}

void OpenHardware::Leave() {
  std::function<void()> when_idle;
  {
    const std::lock_guard lock(mutex_);
    if (--uses_ == 0) when_idle = std::move(when_idle_);
  }
  if (when_idle) when_idle();
}

bool OpenHardware::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

absl::StatusOr<std::shared_ptr<OpenContext>> OpenContext::Open(ibv_device* device, uint8_t port,
                                                               const device::DeviceAttr& attr,
                                                               VerbsDataPath* path) {
  const std::string name = PortName(ibv_get_device_name(device), port);
  ibv_context* const hw = ibv_open_device(device);
  if (hw == nullptr) return VerbsError("open_device", name, errno);
  auto hardware = std::make_shared<OpenHardware>(hw, port, attr);
  if (!SetNonBlocking(hw->async_fd)) return VerbsError("open_device", name, errno);
  return Make(std::move(hardware), true, path);
}

absl::StatusOr<std::shared_ptr<OpenContext>> OpenContext::Share(VerbsDataPath* path) {
  RD_RETURN_IF_ERROR(Check("create_comp_channel"));
  return Make(hardware_, false, path);
}

absl::StatusOr<std::shared_ptr<OpenContext>> OpenContext::Make(
    std::shared_ptr<OpenHardware> hardware, bool first, VerbsDataPath* path) {
  ibv_comp_channel* const channel = ibv_create_comp_channel(hardware->hw_);
  if (channel == nullptr) return VerbsError("create_comp_channel", hardware->name_, errno);
  std::shared_ptr<OpenContext> open(new OpenContext(std::move(hardware), first, channel, *path));
  if (!SetNonBlocking(channel->fd)) return open->Error("create_comp_channel", errno);
  auto& contexts = open->hardware_->contexts_;
  std::erase_if(contexts, [](const auto& context) { return context.expired(); });
  contexts.push_back(open);
  return open;
}

OpenContext::~OpenContext() {
  CloseChannel();
}

void OpenContext::CloseChannel() noexcept {
  if (channel_ != nullptr) ibv_destroy_comp_channel(std::exchange(channel_, nullptr));
}

absl::Status OpenContext::Check(const char* operation) const {
  return hardware_->closing() ? Removed(operation) : absl::OkStatus();
}

absl::Status OpenContext::Removed(const char* operation) const {
  return absl::UnavailableError(absl::StrCat(operation, ": device ", device_name(),
                                             " was removed; open it again when it is back"));
}

absl::Status OpenContext::Error(const char* operation, int error) const {
  return VerbsError(operation, device_name(), error);
}

}  // namespace rdmad::verbs
