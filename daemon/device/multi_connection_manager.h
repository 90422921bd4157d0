// One connection manager over several, for hosts with more than one kind of device (verbs first,
// then soft).
//
// **Which device serves an address:** the first manager in the list that Serves() it. An id belongs
// to a manager once its local address is known:
//   BindAddr of an address  the manager that serves it; NotFound if none does
//   BindAddr of a wildcard  all managers, on the same port, until the id is told more:
//     then Listen             listens in all; one that cannot (no device or port space) is left out
//     then ResolveAddr        goes on with one, as below, and ends the others
//   ResolveAddr             the manager that serves the given local address, else the one that
//                           serves the address from which the kernel's route sends; if none does,
//                           the last manager, whose own rules then decide
//
// Options set before that must suit every manager and are passed on to those that get the id. After
// an id belongs to one manager it stays there, errors included. Endpoints of connect requests are
// their manager's own.
//
// Thread: control. Owner: main; it outlives its endpoints, and its managers outlive it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/connection_manager.h"

namespace rdmad::device {

class MultiConnectionManager : public ConnectionManager {
 public:
  // The address from which the kernel would send to another; any error means that it would not.
  using RouteLookup = std::function<absl::StatusOr<IpAddress>(const IpAddress& peer)>;

  // `managers` has at least one. Errors: those of the kernel (no descriptors).
  static absl::StatusOr<std::unique_ptr<MultiConnectionManager>> Create(
      std::vector<ConnectionManager*> managers, RouteLookup route);

  std::unique_ptr<CmEndpoint> CreateEndpoint(PortSpace port_space, CmEventSink* sink) override;
  bool Serves(const IpAddress& address) const override { return ManagerOf(address) != nullptr; }
  int poll_fd() const noexcept override { return epoll_.get(); }
  void Poll(TimeNs now) override;
  TimeNs NextDeadline() const noexcept override;

  // ---- for the endpoints ----
  [[nodiscard]] const std::vector<ConnectionManager*>& managers() const noexcept {
    return managers_;
  }
  // By the rule above; null: none serves it.
  [[nodiscard]] ConnectionManager* ManagerOf(const IpAddress& local) const;
  // Never null.
  [[nodiscard]] ConnectionManager* ManagerTowards(const IpAddress& peer) const;

 private:
  MultiConnectionManager(std::vector<ConnectionManager*> managers, RouteLookup route,
                         UniqueFd epoll);

  const std::vector<ConnectionManager*> managers_;
  const RouteLookup route_;
  const UniqueFd epoll_;
};

}  // namespace rdmad::device
