#include "daemon/control/policy.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/control/account.h"

namespace rdmad::control {
absl::StatusOr<Policy> Policy::Create(const PolicyConfig& config, const DaemonIdentity& identity) {
  Policy policy;
  policy.own_uid_ = identity.uid;
  for (const std::string& name : config.allow_users.value_or(std::vector<std::string>())) {
    if (name == "*") {
      policy.everybody_ = true;
      continue;
    }
    const std::optional<uid_t> uid = FindUser(name);
    if (!uid) {
      return absl::InvalidArgumentError(absl::StrCat("policy.allow_users: there is no user \"",
                                                     name, "\"; correct the name or use a number"));
    }
    policy.users_.push_back(*uid);
  }
  if (config.allow_groups) {
    for (const std::string& name : *config.allow_groups) {
      const std::optional<gid_t> gid = FindGroup(name);
      if (!gid) {
        return absl::InvalidArgumentError(absl::StrCat("policy.allow_groups: there is no group \"",
                                                       name,
                                                       "\"; correct the name or use a number"));
      }
      policy.groups_.push_back(*gid);
    }
  } else if (identity.system) {
    if (const std::optional<gid_t> gid = FindGroup("rdma")) policy.groups_.push_back(*gid);
  }
  return policy;
}

absl::Status Policy::MayAttach(const Peer& peer) const {
  if (everybody_ || IsPrivileged(peer.uid)) return absl::OkStatus();
  if (std::find(users_.begin(), users_.end(), peer.uid) != users_.end()) return absl::OkStatus();
  for (gid_t allowed : groups_) {
    if (peer.gid == allowed) return absl::OkStatus();
    if (std::find(peer.groups.begin(), peer.groups.end(), allowed) != peer.groups.end()) {
      return absl::OkStatus();
    }
  }
  return absl::PermissionDeniedError(
      absl::StrCat("uid ", peer.uid,
                   " may not use this rdmad; an administrator can add the user to the group rdma "
                   "or to [policy] in rdmad.toml"));
}

}  // namespace rdmad::control
