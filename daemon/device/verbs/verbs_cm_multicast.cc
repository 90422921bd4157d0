// The multicast groups of a VerbsCmEndpoint.
//
// The kernel joins and answers by an event; on RoCE that means IGMP and no more. It does not do so
// for IPv6 (Linux 6.1: ENOTSUPP), where joining means MLD and the answer is known: so it is made
// here.
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/multicast_member.h"
#include "daemon/device/verbs/verbs_cm_endpoint.h"

namespace rdmad::verbs {
namespace {

constexpr int kKernelsEnotsupp = 524;         // linux/errno.h; no C library knows it
constexpr uint32_t kMulticastQpn = 0xffffff;  // IBTA vol. 1, 3.5.11
constexpr uint32_t kSendOnly = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;

}  // namespace

absl::Status VerbsCmEndpoint::JoinMulticast(const SocketAddress& group, uint32_t join_flags,
                                            uint64_t cookie) {
  constexpr char kCall[] = "join_multicast";
  RD_RETURN_IF_ERROR(unusable_);
  if (!is_datagram() || context() == nullptr) return WrongState(kCall);
  if (!group.ip.is_multicast() || join_flags > kSendOnly) {
    return absl::InvalidArgumentError(
        absl::StrCat(kCall, ": group=", group.ToString(), " join_flags=", join_flags));
  }
  if (std::any_of(groups_.begin(), groups_.end(),
                  [&](const Group& one) { return one.address.ip == group.ip; })) {
    return absl::AlreadyExistsError(absl::StrCat(kCall, ": group=", group.ToString()));
  }
  sockaddr_storage name{};
  group.ToSockaddr(&name);
  rdma_cm_join_mc_attr_ex attr{};
  attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
  attr.join_flags = join_flags;
  attr.addr = reinterpret_cast<sockaddr*>(&name);
  static_assert(sizeof(void*) == sizeof(cookie));
  if (rdma_join_multicast_ex(id_, &attr, reinterpret_cast<void*>(cookie)) == 0) {
    groups_.push_back({group, cookie, true, true, UniqueFd()});
    return absl::OkStatus();
  }
  const int error = errno;
  if (group.ip.is_v6() && (error == kKernelsEnotsupp || error == EOPNOTSUPP)) {
    return JoinWithoutKernel(group, join_flags == kSendOnly, cookie);
  }
  return CmStatus(error, Einval::kState,
                  absl::StrCat(Describe(kCall), " group=", group.ToString()));
}

absl::Status VerbsCmEndpoint::JoinWithoutKernel(const SocketAddress& group, bool send_only,
                                                uint64_t cookie) {
  const device::Device* const bound = device();
  if (bound == nullptr) return WrongState("join_multicast");
  UniqueFd member;
  if (!send_only) {
    // (Asked for an empty name, the kernel looks for a module of that name.)
    const std::string& netdev = bound->netdev();
    const uint32_t ifindex = netdev.empty() ? 0 : ::if_nametoindex(netdev.c_str());
    RD_ASSIGN_OR_RETURN(member, JoinOnInterface(group.ip, ifindex));
  }
  device::CmEvent event;
  event.type = device::CmEventType::kMulticastJoin;
  event.param.qpn = kMulticastQpn;
  event.param.qkey = RDMA_UDP_QKEY;
  event.av.dest = group.ip;
  for (const device::GidEntry& gid : bound->Gids()) {
    if (gid.address.gid() == local().ip.gid()) event.av.sgid_index = gid.index;
  }
  event.multicast_cookie = cookie;
  groups_.push_back({group, cookie, true, false, std::move(member)});
  manager_->Post(this, std::move(event));
  return absl::OkStatus();
}

absl::Status VerbsCmEndpoint::LeaveMulticast(const SocketAddress& group) {
  RD_RETURN_IF_ERROR(unusable_);
  const auto found = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Group& one) { return one.address.ip == group.ip; });
  if (found == groups_.end()) {
    return absl::NotFoundError(absl::StrCat("leave_multicast: group=", group.ToString()));
  }
  // Gone whatever the kernel says: librdmacm forgets it before it asks the kernel, so there is no
  // second try, and a membership that stayed ends with the id.
  const Group left = std::move(*found);
  groups_.erase(found);
  return LeaveInKernel(left);
}

absl::Status VerbsCmEndpoint::LeaveInKernel(const Group& group) {
  if (!group.by_kernel) return absl::OkStatus();
  sockaddr_storage name{};
  group.address.ToSockaddr(&name);
  if (rdma_leave_multicast(id_, reinterpret_cast<sockaddr*>(&name)) == 0) return absl::OkStatus();
  return Failed("leave_multicast", Einval::kState);
}

bool VerbsCmEndpoint::OnMulticast(device::CmEvent* event) {
  const bool joined = event->type == device::CmEventType::kMulticastJoin;
  const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& one) {
    return one.cookie == event->multicast_cookie && (one.asked || !joined);
  });
  if (group == groups_.end()) return false;  // left meanwhile
  group->asked = false;
  if (joined) {
    event->av.dest = group->address.ip;  // with its scope
    return true;
  }
  // librdmacm keeps its half until it is told.
  static_cast<void>(LeaveInKernel(*group));
  groups_.erase(group);
  return true;
}

}  // namespace rdmad::verbs
