// Who is at the other end of a Unix socket, by the kernel's word.
//
// Thread: any.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::control {

// The peer as it was when it connected; it may have exec'd, changed its ids or died since.
// Decisions rest on uid and groups only: a pid may have been given to another process.
struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
  UniqueFd pidfd;             // empty on kernels before 6.5
};

// Errors: Internal (not a Unix socket).
absl::StatusOr<Peer> PeerOf(int socket);

// The process's name as `ps` shows it; empty if it has gone or hides. With a pidfd the answer is
// certain to be about the peer itself; without one it is for people to read.
std::string CommOf(const Peer& peer);

}  // namespace rdmad::control
