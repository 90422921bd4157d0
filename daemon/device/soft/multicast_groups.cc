#include "daemon/device/soft/multicast_groups.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/ud_qp.h"

namespace rdmad::soft {
namespace {

// Groups are many, and what they carry is seldom much.
constexpr UdpSocketOptions kSocketOptions = {.receive_buffer_bytes = 2u << 20,
                                             .send_buffer_bytes = 64u << 10};

class Attachment final : public device::EngineObject {
 public:
  Attachment(SoftDataPath& path, UdQp& qp, std::shared_ptr<MulticastPort> port,
             std::shared_ptr<const MulticastGroups> groups)
      : path_(path), groups_(std::move(groups)), port_(std::move(port)), member_(qp) {}

  void Activate(device::TimeNs) noexcept override {
    if (port_->group().empty()) path_.AddMulticastPort(port_.get());
    port_->group().Add(member_);
  }
  void Deactivate(device::TimeNs) noexcept override {
    port_->group().Remove(member_);
    if (port_->group().empty()) path_.RemoveMulticastPort(port_.get());
  }

 private:
  SoftDataPath& path_;
  const std::shared_ptr<const MulticastGroups> groups_;  // has the port's counters
  const std::shared_ptr<MulticastPort> port_;
  MulticastMember member_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<device::EngineObject>> MulticastGroups::Attach(
    SoftDataPath& path, device::Qp& qp, const IpAddress& group, uint16_t udp_port) {
  auto* const datagram = dynamic_cast<UdQp*>(&qp);
  if (datagram == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("attach_mcast: qpn=", qp.qpn(), " is not a UD queue pair"));
  }
  // The device has one interface, so the group needs no scope.
  RD_ASSIGN_OR_RETURN(std::shared_ptr<MulticastPort> port,
                      FindOrOpen(group.WithScope(0), udp_port));
  const auto members = static_cast<uint32_t>(port.use_count() - 1);
  if (members >= kMaxQpsPerGroup) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attach_mcast: group ", group.ToString(),
                     " has no more places: device_max=", kMaxQpsPerGroup));
  }
  return std::make_unique<Attachment>(path, *datagram, std::move(port), shared_from_this());
}

absl::StatusOr<std::shared_ptr<MulticastPort>> MulticastGroups::FindOrOpen(const IpAddress& group,
                                                                           uint16_t udp_port) {
  std::erase_if(ports_, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = ports_.find(group); found != ports_.end()) return found->second.lock();
  if (ports_.size() >= kMaxGroups) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attach_mcast: no more groups on interface ", interface_index_,
                     ": device_max=", kMaxGroups));
  }
  RD_ASSIGN_OR_RETURN(std::unique_ptr<MulticastPort> opened,
                      MulticastPort::Open(group, interface_index_, udp_port, kSocketOptions, &counters_));
  // Whoever holds a port holds this object, too, and lets go of the port first.
  std::shared_ptr<MulticastPort> port(opened.release(), [this](MulticastPort* gone) {
    drops_of_gone_ports_ += SocketDrops(gone->fd());
    delete gone;
  });
  ports_[group] = port;
  return port;
}

size_t MulticastGroups::size() const noexcept {
  return static_cast<size_t>(std::count_if(
      ports_.begin(), ports_.end(), [](const auto& entry) { return !entry.second.expired(); }));
}

uint64_t MulticastGroups::SocketDropCount() const noexcept {
  uint64_t sum = drops_of_gone_ports_;
  for (const auto& [group, weak] : ports_) {
    if (const auto port = weak.lock()) sum += SocketDrops(port->fd());
  }
  return sum;
}

}  // namespace rdmad::soft
