#include "daemon/device/verbs/open_context.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
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

absl::StatusOr<std::shared_ptr<OpenContext>> OpenContext::Open(ibv_device* device, uint8_t port,
                                                               const device::DeviceAttr& attr,
                                                               VerbsDataPath* path) {
  const std::string name = PortName(ibv_get_device_name(device), port);
  ibv_context* const hw = ibv_open_device(device);
  if (hw == nullptr) return VerbsError("open_device", name, errno);
  ibv_comp_channel* const channel = ibv_create_comp_channel(hw);
  if (channel == nullptr) {
    const int error = errno;
    ibv_close_device(hw);
    return VerbsError("create_comp_channel", name, error);
  }
  std::shared_ptr<OpenContext> open(new OpenContext(hw, port, channel, attr, *path));
  if (!SetNonBlocking(hw->async_fd) || !SetNonBlocking(channel->fd)) {
    return VerbsError("open_device", name, errno);
  }
  return open;
}

OpenContext::OpenContext(ibv_context* hw, uint8_t port, ibv_comp_channel* channel,
                         const device::DeviceAttr& attr, VerbsDataPath& path)
    : hw_(hw),
      channel_(channel),
      port_(port),
      name_(PortName(ibv_get_device_name(hw->device), port)),
      attr_(attr),
      path_(path) {}

OpenContext::~OpenContext() {
  for (const auto& set : objects_) RD_CHECK(set.empty(), "objects go before their context");
  RD_CHECK(CloseHardware(), "nobody is at work on what does not exist");
}

bool OpenContext::CloseHardware(std::function<void()> when_idle) {
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
  if (channel_ != nullptr) ibv_destroy_comp_channel(std::exchange(channel_, nullptr));
  if (hw_ != nullptr) ibv_close_device(std::exchange(hw_, nullptr));
  return true;
}

bool OpenContext::Enter() {
  const std::lock_guard lock(mutex_);
  if (closing_) return false;
  ++uses_;
  return true;
}

void OpenContext::Leave() {
  std::function<void()> when_idle;
  {
    const std::lock_guard lock(mutex_);
    if (--uses_ == 0) when_idle = std::move(when_idle_);
  }
  if (when_idle) when_idle();
}

bool OpenContext::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

absl::Status OpenContext::Check(const char* operation) const {
  return closing() ? Removed(operation) : absl::OkStatus();
}

absl::Status OpenContext::Removed(const char* operation) const {
  return absl::UnavailableError(
      absl::StrCat(operation, ": device ", name_, " was removed; open it again when it is back"));
}

absl::Status OpenContext::Error(const char* operation, int error) const {
  return VerbsError(operation, name_, error);
}

}  // namespace rdmad::verbs
