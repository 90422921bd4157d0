#include "daemon/device/verbs/verbs_multicast.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/multicast_member.h"
#include "daemon/device/verbs/verbs_qp.h"

namespace rdmad::verbs {
namespace {

constexpr size_t kMaxGids = 256;

// 0: none, as with InfiniBand.
uint32_t InterfaceOf(ibv_context* hw, uint8_t port) {
  std::array<ibv_gid_entry, kMaxGids> entries;
  const ssize_t count = ibv_query_gid_table(hw, entries.data(), entries.size(), 0);
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num == port && entry.ndev_ifindex != 0) return entry.ndev_ifindex;
  }
  return 0;
}

ibv_gid ToIbv(const IpAddress& address) {
  ibv_gid gid;
  std::memcpy(gid.raw, address.gid().data(), sizeof(gid.raw));
  return gid;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsMulticast>> VerbsMulticast::Attach(
    std::shared_ptr<OpenContext> context, const VerbsQp& qp, const IpAddress& group) {
  RD_RETURN_IF_ERROR(context->Check("attach_mcast"));
  if (!group.is_multicast()) {
    return absl::InvalidArgumentError(
        absl::StrCat("attach_mcast: ", group.ToString(), " is no multicast address"));
  }
  if (qp.type() != device::QpType::kUd) {
    return absl::InvalidArgumentError("attach_mcast: only a UD queue pair can be in a group");
  }
  UniqueFd member;
  if (const uint32_t ifindex = InterfaceOf(context->hw(), context->port()); ifindex != 0) {
    RD_ASSIGN_OR_RETURN(member, JoinOnInterface(group, ifindex));
  }
  const ibv_gid gid = ToIbv(group);
  if (const int error = ibv_attach_mcast(qp.hw(), &gid, 0); error != 0) {
    return context->Error("attach_mcast", error);
  }
  return std::unique_ptr<VerbsMulticast>(
      new VerbsMulticast(std::move(context), qp.hw(), gid, std::move(member)));
}

VerbsMulticast::VerbsMulticast(std::shared_ptr<OpenContext> context, ibv_qp* qp,
                               const ibv_gid& group, UniqueFd member)
    : context_(std::move(context)), qp_(qp), group_(group), member_(std::move(member)) {
  context_->Add(HardwareKind::kMulticast, this);
}

VerbsMulticast::~VerbsMulticast() {
  CloseHardware();
  context_->Remove(HardwareKind::kMulticast, this);
}

void VerbsMulticast::CloseHardware() noexcept {
  if (qp_ != nullptr) ibv_detach_mcast(std::exchange(qp_, nullptr), &group_, 0);
}

}  // namespace rdmad::verbs
