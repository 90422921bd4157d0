#include "daemon/device/multi_connection_manager.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/device/multi_cm_endpoint.h"

namespace rdmad::device {

absl::StatusOr<std::unique_ptr<MultiConnectionManager>> MultiConnectionManager::Create(
    std::vector<ConnectionManager*> managers, RouteLookup route) {
  RD_CHECK(!managers.empty(), "a connection manager over no manager");
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return absl::ErrnoToStatus(errno, "cm: epoll_create1");
  for (ConnectionManager* manager : managers) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, manager->poll_fd(), &event) != 0) {
      return absl::ErrnoToStatus(errno, "cm: epoll_ctl");
    }
  }
  return std::unique_ptr<MultiConnectionManager>(
      new MultiConnectionManager(std::move(managers), std::move(route), std::move(epoll)));
}

MultiConnectionManager::MultiConnectionManager(std::vector<ConnectionManager*> managers,
                                               RouteLookup route, UniqueFd epoll)
    : managers_(std::move(managers)), route_(std::move(route)), epoll_(std::move(epoll)) {}

std::unique_ptr<CmEndpoint> MultiConnectionManager::CreateEndpoint(PortSpace port_space,
                                                                   CmEventSink* sink) {
  return std::make_unique<MultiCmEndpoint>(this, port_space, sink);
}

void MultiConnectionManager::Poll(TimeNs now) {
  for (ConnectionManager* manager : managers_) manager->Poll(now);
}

TimeNs MultiConnectionManager::NextDeadline() const noexcept {
  TimeNs next = kNever;
  for (const ConnectionManager* manager : managers_) next = std::min(next, manager->NextDeadline());
  return next;
}

ConnectionManager* MultiConnectionManager::ManagerOf(const IpAddress& local) const {
  const auto found =
      std::find_if(managers_.begin(), managers_.end(),
                   [&local](const ConnectionManager* manager) { return manager->Serves(local); });
  return found == managers_.end() ? nullptr : *found;
}

ConnectionManager* MultiConnectionManager::ManagerTowards(const IpAddress& peer) const {
  const absl::StatusOr<IpAddress> source = route_(peer);
  ConnectionManager* const manager = source.ok() ? ManagerOf(*source) : nullptr;
  return manager == nullptr ? managers_.back() : manager;
}

}  // namespace rdmad::device
