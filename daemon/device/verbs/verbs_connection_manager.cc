#include "daemon/device/verbs/verbs_connection_manager.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/socket_address.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/verbs/non_blocking.h"
#include "daemon/device/verbs/verbs_cm_convert.h"
#include "daemon/device/verbs/verbs_cm_endpoint.h"

namespace rdmad::verbs {
namespace {

constexpr int kEventsPerPoll = 64;
constexpr char kKernelFile[] = "/dev/infiniband/rdma_cm";

// librdmacm's errno alone does not tell these apart.
absl::Status NoChannel(int error) {
  if (::access(kKernelFile, F_OK) != 0) {
    return absl::UnavailableError(absl::StrCat("rdma_cm: the kernel has no ", kKernelFile,
                                               ": load its module with `modprobe rdma_ucm`"));
  }
  if (error == EACCES || error == EPERM) {
    return absl::UnavailableError(
        absl::StrCat("rdma_cm: ", kKernelFile,
                     " may not be opened: run rdmad as root or give its user access to the file"));
  }
  if (error == ENODEV) return absl::UnavailableError("rdma_cm: this host has no RDMA device now");
  return absl::UnavailableError(
      absl::StrCat("rdma_cm: ", kKernelFile, ": ", std::generic_category().message(error)));
}

// Closes the kernel's side of a context that belongs to librdmacm. The descriptors stay valid, so
// that librdmacm can close them in its time. Until then it asks the context for nothing but to free
// a PD, whose few bytes are lost.
void CutOff(const ibv_context& context) {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing) return;
  for (const int fd : {context.cmd_fd, context.async_fd}) {
    if (fd >= 0) (void)::dup3(nothing.get(), fd, O_CLOEXEC);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsConnectionManager>> VerbsConnectionManager::Create(
    const DeviceFinder* finder) {
  RD_ASSIGN_OR_RETURN(device::WakeFd wake, device::WakeFd::Create(-1));
  return std::unique_ptr<VerbsConnectionManager>(
      new VerbsConnectionManager(finder, std::move(wake)));
}

VerbsConnectionManager::VerbsConnectionManager(const DeviceFinder* finder, device::WakeFd wake)
    : finder_(finder), wake_(std::move(wake)) {}

absl::Status VerbsConnectionManager::Open() {
  if (channel_ != nullptr) return absl::OkStatus();
  Channel channel(rdma_create_event_channel());
  if (channel == nullptr) return NoChannel(errno);
  if (!SetNonBlocking(channel->fd)) return absl::ErrnoToStatus(errno, "rdma_cm: fcntl");
  RD_RETURN_IF_ERROR(wake_.Watch(channel->fd));
  channel_ = std::move(channel);
  for (VerbsCmEndpoint* endpoint : endpoints_) endpoint->OnChannelOpened();
  return absl::OkStatus();
}

VerbsConnectionManager::~VerbsConnectionManager() {
  RD_CHECK(endpoints_.empty(), "endpoints are destroyed before their connection manager");
}

std::unique_ptr<device::CmEndpoint> VerbsConnectionManager::CreateEndpoint(
    device::PortSpace port_space, device::CmEventSink* sink) {
  return std::make_unique<VerbsCmEndpoint>(this, port_space, sink);
}

bool VerbsConnectionManager::Serves(const IpAddress& address) const {
  return finder_->FindByAddress(address) != nullptr;
}

void VerbsConnectionManager::Unregister(VerbsCmEndpoint* endpoint) {
  endpoints_.erase(endpoint);
  deferred_ports_.Release(endpoint->DeferredOwner());
  std::erase_if(queued_, [endpoint](const QueuedEvent& one) { return one.endpoint == endpoint; });
}

void VerbsConnectionManager::Post(VerbsCmEndpoint* endpoint, device::CmEvent event) {
  queued_.push_back({endpoint, std::move(event)});
  wake_.Kick();
}

void VerbsConnectionManager::Anchor(const rdma_cm_id& id) {
  if (id.verbs == nullptr || HasAnchor(id.verbs)) return;
  rdma_cm_id* raw = nullptr;
  if (rdma_create_id(channel_.get(), &raw, nullptr, RDMA_PS_UDP) != 0) return;
  Id anchor(raw);
  sockaddr_storage address{};
  SocketAddress{FromRdma(&id.route.addr.src_addr).ip, 0}.ToSockaddr(&address);
  if (rdma_bind_addr(raw, reinterpret_cast<sockaddr*>(&address)) != 0) return;
  if (raw->verbs == id.verbs) anchors_.push_back(std::move(anchor));
}

bool VerbsConnectionManager::HasAnchor(const ibv_context* context) const {
  return std::any_of(anchors_.begin(), anchors_.end(),
                     [context](const Id& anchor) { return anchor->verbs == context; });
}

void VerbsConnectionManager::OnDeviceRemoved(std::string_view ibv_name) {
  for (const VerbsCmEndpoint* endpoint : endpoints_) {
    ibv_context* const context = endpoint->context();
    if (context == nullptr || HasAnchor(context)) continue;
    if (ibv_get_device_name(context->device) == ibv_name) OnDeviceGone(context);
  }
}

void VerbsConnectionManager::OnDeviceGone(ibv_context* context) {
  if (context == nullptr) return;
  CutOff(*context);
  for (VerbsCmEndpoint* endpoint : endpoints_) {
    if (endpoint->context() != context) continue;
    endpoint->ReleaseRemoved();
    device::CmEvent event;
    event.type = device::CmEventType::kDeviceRemoval;
    Post(endpoint, std::move(event));
  }
  std::erase_if(anchors_, [context](const Id& anchor) { return anchor->verbs == context; });
}

void VerbsConnectionManager::Poll(device::TimeNs /*now*/) {
  wake_.Clear();
  int budget = kEventsPerPoll;
  for (; budget > 0 && !queued_.empty(); --budget) {
    QueuedEvent next = std::move(queued_.front());
    queued_.pop_front();
    next.endpoint->Deliver(std::move(next.event));
  }
  if (!queued_.empty()) wake_.Kick();
  for (; budget > 0 && channel_ != nullptr; --budget) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel_.get(), &event) != 0) return;  // EAGAIN: no more now
    OnEvent(event);
  }
}

void VerbsConnectionManager::OnEvent(rdma_cm_event* raw) {
  const bool is_request = EventType(*raw) == RDMA_CM_EVENT_CONNECT_REQUEST;
  rdma_cm_id* const about = is_request ? raw->listen_id : raw->id;
  rdma_cm_id* const request_id = is_request ? raw->id : nullptr;
  std::optional<device::CmEvent> event = FromRdma(*raw, about->ps == RDMA_PS_UDP);
  rdma_ack_cm_event(raw);
  if (!event.has_value()) return;
  if (event->type == device::CmEventType::kDeviceRemoval) {
    OnDeviceGone(about->verbs);
    return;
  }
  auto* const endpoint = static_cast<VerbsCmEndpoint*>(about->context);
  if (endpoint == nullptr) return;  // an anchor
  if (is_request) {
    auto asking = std::make_unique<VerbsCmEndpoint>(this, request_id, event->param.qpn);
    // It came in on a device that the daemon does not serve: going, it rejects the request.
    if (asking->device() == nullptr) return;
    event->path_mtu = asking->path_mtu();
    event->new_endpoint = std::move(asking);
  }
  endpoint->Deliver(*std::move(event));
}

}  // namespace rdmad::verbs
