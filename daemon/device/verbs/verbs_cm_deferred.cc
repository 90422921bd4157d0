// A VerbsCmEndpoint from before the host's first RDMA device: what it is told is kept until the
// kernel can make its id.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "daemon/base/status_macros.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/verbs/verbs_cm_endpoint.h"

namespace rdmad::verbs {
namespace {

// One that no socket has, so that perhaps no id will; 0: none.
uint16_t LikelyFreePort(const IpAddress& wildcard) {
  const UniqueFd fd(::socket(wildcard.is_v4() ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage name{};
  socklen_t bytes = SocketAddress{wildcard, 0}.ToSockaddr(&name);
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  if (!fd.valid() || ::bind(fd.get(), address, bytes) != 0) return 0;
  bytes = sizeof(name);
  if (::getsockname(fd.get(), address, &bytes) != 0) return 0;
  return SocketAddress::FromSockaddr(&name, bytes).value_or(SocketAddress()).port;
}

}  // namespace

absl::Status VerbsCmEndpoint::DeferBind(const SocketAddress& local) {
  if (state_ != State::kIdle) return WrongState("bind_addr");
  if (!local.ip.is_any()) return unusable_;
  const uint16_t port = local.port != 0 ? local.port : LikelyFreePort(local.ip);
  if (port == 0) return unusable_;
  const device::PortTable::Claim claim{space_, {local.ip, port},
                                       IsDeferredOn(RDMA_OPTION_ID_REUSEADDR),
                                       IsDeferredOn(RDMA_OPTION_ID_AFONLY)};
  RD_RETURN_IF_ERROR(manager_->deferred_ports_.Bind(DeferredOwner(), claim, 0).status());
  local_ = {local.ip, port};
  state_ = State::kBound;
  return absl::OkStatus();
}

bool VerbsCmEndpoint::IsDeferredOn(uint32_t option) const {
  if (!deferred_) return false;
  bool on = false;
  for (const Option& one : deferred_->options) {
    if (one.name != option) continue;
    on = std::any_of(one.value.begin(), one.value.end(), [](uint8_t byte) { return byte != 0; });
  }
  return on;
}

void VerbsCmEndpoint::DeferOption(uint32_t option, std::span<const uint8_t> value) {
  deferred_->options.push_back({option, {value.begin(), value.end()}});
  manager_->deferred_ports_.SetOptions(DeferredOwner(), IsDeferredOn(RDMA_OPTION_ID_REUSEADDR),
                                       IsDeferredOn(RDMA_OPTION_ID_AFONLY));
}

absl::Status VerbsCmEndpoint::DeferListen(int backlog) {
  if (state_ == State::kIdle) {
    RD_RETURN_IF_ERROR(DeferBind({IpAddress::AnyV4(), 0}));
  }
  if (state_ != State::kBound) return WrongState("listen");
  RD_RETURN_IF_ERROR(manager_->deferred_ports_.Listen(DeferredOwner()));
  deferred_->backlog = backlog;
  state_ = State::kListening;
  return absl::OkStatus();
}

void VerbsCmEndpoint::OnChannelOpened() {
  if (!deferred_) return;
  const Deferred deferred = *std::exchange(deferred_, std::nullopt);
  const State wanted = std::exchange(state_, State::kIdle);
  manager_->deferred_ports_.Release(DeferredOwner());
  absl::Status status = MakeId();
  for (const Option& option : deferred.options) {
    if (status.ok()) status = SetKernelOption(option.name, option.value);
  }
  if (status.ok() && wanted != State::kIdle) status = Bind(local_);
  if (status.ok() && wanted == State::kListening) {
    unusable_ = absl::OkStatus();
    status = Listen(deferred.backlog);
  }
  unusable_ = status;
  if (status.ok()) return;
  if (id_ != nullptr) rdma_destroy_id(std::exchange(id_, nullptr));
  state_ = wanted;
  if (manager_->late_failures_) manager_->late_failures_(status);
}

}  // namespace rdmad::verbs
