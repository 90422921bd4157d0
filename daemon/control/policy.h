// Who may attach.
//
// Root and the daemon's own user always may. Others:
//   a system daemon (run_dir.h): members of the groups in policy.allow_groups (default: "rdma", if
//   the host has it) and
//     the users in policy.allow_users (default: none; "*" is everybody);
//   a user's own daemon: nobody else, unless a list is given. Its sockets have mode 0600, so such a
//   list also needs the
//     sockets' modes to be changed by hand.
// Root and the daemon's own user also have the *privileged view*: they see every session's objects.
//
// Thread: control. Owner: Daemon; replaced as a whole on reload, which does not touch sessions that
// exist.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/config.h"
#include "daemon/control/peer.h"
#include "daemon/control/run_dir.h"

namespace rdmad::control {

class Policy {
 public:
  // Looks the names up. InvalidArgument: a user or group of the configuration does not exist.
  static absl::StatusOr<Policy> Create(const PolicyConfig& config, const DaemonIdentity& identity);

  // PermissionDenied says who, and what would let them in.
  [[nodiscard]] absl::Status MayAttach(const Peer& peer) const;
  [[nodiscard]] bool IsPrivileged(uid_t uid) const noexcept { return uid == 0 || uid == own_uid_; }

 private:
  uid_t own_uid_ = 0;
  bool everybody_ = false;
  std::vector<uid_t> users_;
  std::vector<gid_t> groups_;
};

}  // namespace rdmad::control
