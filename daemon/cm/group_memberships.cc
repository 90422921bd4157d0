#include "daemon/cm/group_memberships.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::cm {
namespace {

using device::CmEvent;
using device::CmEventType;

constexpr size_t kMaxMemberships = 32;  // of one id
constexpr uint32_t kSendOnlyFlag = 1;   // RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER

// As the events of a failed join carry it.
int NegativeErrno(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return -ENOMEM;
    case absl::StatusCode::kUnimplemented:
      return -EOPNOTSUPP;
    case absl::StatusCode::kUnavailable:
      return -ENODEV;
    default:
      return -EINVAL;
  }
}

}  // namespace

absl::Status GroupMemberships::Join(const SocketAddress& group, uint32_t join_flags,
                                    uint64_t cookie) {
  if (by_number_.size() >= kMaxMemberships) {
    return absl::ResourceExhaustedError(
        absl::StrCat("join_multicast: the id is in too many groups: limit=", kMaxMemberships));
  }
  const uint64_t number = ++last_number_;
  RD_RETURN_IF_ERROR(endpoint_->JoinMulticast(group, join_flags, number));
  by_number_[number] = {group, cookie, std::nullopt, join_flags == kSendOnlyFlag};
  return absl::OkStatus();
}

absl::Status GroupMemberships::Leave(uint64_t handle, const SocketAddress& group) {
  RD_RETURN_IF_ERROR(endpoint_->LeaveMulticast(group));
  const auto left = std::find_if(by_number_.begin(), by_number_.end(), [&](const auto& entry) {
    return entry.second.group.ip.gid() == group.ip.gid();
  });
  if (left == by_number_.end()) return absl::OkStatus();
  const std::optional<IpAddress> attached = left->second.attached;
  by_number_.erase(left);
  if (attached) host_->DetachQp(handle, *attached);
  return absl::OkStatus();
}

void GroupMemberships::OnJoined(uint64_t handle, bool has_qp, CmEvent event) {
  const auto joined = by_number_.find(event.multicast_cookie);
  if (joined == by_number_.end()) return;  // left meanwhile
  if (!has_qp || joined->second.is_send_only) {
    event.multicast_cookie = joined->second.cookie;
    report_(event);
    return;
  }
  // Without its scope: the QP is of one device, and whoever attaches by hand names a mere GID.
  const IpAddress group = IpAddress::FromGid(event.av.dest.gid());
  joined->second.attached = group;
  host_->AttachQp(handle, group,
                  [self = self_, handle, shared = std::make_shared<CmEvent>(std::move(event))](
                      const absl::Status& attached) {
                    if (*self != nullptr) (*self)->OnAttached(handle, attached, std::move(*shared));
                  });
}

void GroupMemberships::OnAttached(uint64_t handle, const absl::Status& attached, CmEvent event) {
  const auto joined = by_number_.find(event.multicast_cookie);
  if (joined == by_number_.end()) return;  // left meanwhile
  // Without its QP, which went meanwhile, the id is in the group all the same.
  if (attached.ok() || absl::IsCancelled(attached)) {
    event.multicast_cookie = joined->second.cookie;
    report_(event);
    return;
  }
  joined->second.attached.reset();
  (void)endpoint_->LeaveMulticast(joined->second.group);
  event.type = CmEventType::kMulticastError;
  event.status = NegativeErrno(attached);
  OnError(handle, std::move(event));
}

void GroupMemberships::OnError(uint64_t handle, CmEvent event) {
  const auto joined = by_number_.find(event.multicast_cookie);
  if (joined == by_number_.end()) return;  // left meanwhile
  const Membership lost = joined->second;
  by_number_.erase(joined);
  if (lost.attached) host_->DetachQp(handle, *lost.attached);
  event.multicast_cookie = lost.cookie;
  report_(event);
}

void GroupMemberships::OnQpGone() {
  for (auto& [number, membership] : by_number_) membership.attached.reset();
}

}  // namespace rdmad::cm
