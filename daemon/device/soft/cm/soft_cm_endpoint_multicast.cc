// The multicast groups of soft_cm_endpoint.h. On Ethernet the CM only keeps the books and says how
// a group is reached: attaching a QP, and telling the network of the membership, is the device's.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/cm/cm_event.h"
#include "daemon/device/soft/cm/sidr_request.h"
#include "daemon/device/soft/cm/soft_cm_endpoint.h"

namespace rdmad::soft {
namespace {

// RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER; 0 is a full member.
constexpr uint32_t kSendOnlyFullMember = 1;

// The interface of a device, which its link-local addresses name; 0: it has none.
uint32_t ScopeOf(const device::Device& device) {
  for (const device::GidEntry& entry : device.Gids()) {
    if (entry.address.is_link_local() && entry.address.scope_id() != 0) {
      return entry.address.scope_id();
    }
  }
  return 0;
}

}  // namespace

absl::StatusOr<IpAddress> SoftCmEndpoint::GroupOf(const SocketAddress& group) const {
  if (!group.ip.is_multicast()) {
    return absl::InvalidArgumentError(
        absl::StrCat("join_multicast: ", group.ip.ToString(), " is no multicast address"));
  }
  if (group.ip.is_v4() != local_.ip.is_v4()) {
    return absl::InvalidArgumentError(absl::StrCat("join_multicast: group=", group.ip.ToString(),
                                                   " and local=", local_.ip.ToString(),
                                                   " are of different families"));
  }
  if (!group.ip.is_link_local() || group.ip.scope_id() != 0) return group.ip;
  const uint32_t scope = local_.ip.is_link_local() ? local_.ip.scope_id() : ScopeOf(*device_);
  if (scope != 0) return group.ip.WithScope(scope);
  return absl::InvalidArgumentError(
      absl::StrCat("join_multicast: ", group.ip.ToString(), " needs an interface (scope id)"));
}

SoftCmEndpoint::Membership* SoftCmEndpoint::FindMembership(const IpAddress& group) {
  // An id has one device, so the scope says nothing that the group does not.
  const auto found =
      std::find_if(memberships_.begin(), memberships_.end(),
                   [&group](const Membership& one) { return one.group.gid() == group.gid(); });
  return found == memberships_.end() ? nullptr : &*found;
}

absl::Status SoftCmEndpoint::JoinMulticast(const SocketAddress& group, uint32_t join_flags,
                                           uint64_t cookie) {
  const bool ready =
      state_ == State::kBound || state_ == State::kAddrResolved || state_ == State::kRouteResolved;
  if (!is_datagram() || !ready || device_ == nullptr) return WrongState("join_multicast");
  if (join_flags > kSendOnlyFullMember) {
    return absl::InvalidArgumentError(absl::StrCat("join_multicast: join_flags=", join_flags));
  }
  RD_ASSIGN_OR_RETURN(const IpAddress ip, GroupOf(group));
  if (FindMembership(ip) != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("join_multicast: the id is in ", ip.ToString(), " already"));
  }
  manager_->Enter();
  memberships_.push_back({ip, cookie, false});
  device::CmEvent event = MakeCmEvent(device::CmEventType::kMulticastJoin);
  event.param.qpn = wire::kMulticastQpn.value();
  event.param.qkey = device::kUdpQkey;
  event.path_mtu = device_->QueryPort().active_mtu;
  event.av.dest = ip;
  event.av.sgid_index = SgidIndexOf(*device_, local_.ip);
  event.av.traffic_class = tos_;
  event.multicast_cookie = cookie;
  manager_->Post(id_, std::move(event));
  return absl::OkStatus();
}

absl::Status SoftCmEndpoint::LeaveMulticast(const SocketAddress& group) {
  const Membership* const membership = FindMembership(group.ip);
  if (membership == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("leave_multicast: the id is not in ", group.ip.ToString()));
  }
  memberships_.erase(memberships_.begin() + (membership - memberships_.data()));
  return absl::OkStatus();
}

// False: the id has left the group before it heard of the join.
bool SoftCmEndpoint::TakeJoined(const device::CmEvent& event) {
  Membership* const membership = FindMembership(event.av.dest);
  if (membership == nullptr || membership->reported ||
      membership->cookie != event.multicast_cookie) {
    return false;
  }
  membership->reported = true;
  return true;
}

}  // namespace rdmad::soft
