#include "daemon/control/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif

namespace rdmad::control {

absl::StatusOr<Peer> PeerOf(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return absl::InternalError(absl::StrCat("SO_PEERCRED: errno=", errno));
  }
  Peer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;

  bytes = 0;
  getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &bytes);  // ERANGE; says how many bytes
  peer.groups.resize(bytes / sizeof(gid_t));
  if (!peer.groups.empty() &&
      getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &bytes) != 0) {
    peer.groups.clear();
  }

  int pidfd = -1;
  bytes = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) peer.pidfd.Reset(pidfd);
  return peer;
}

std::string CommOf(const Peer& peer) {
  if (peer.pid <= 0) return "";
  const std::string path = absl::StrCat("/proc/", peer.pid, "/comm");
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return "";
  char text[64] = {};
  ssize_t length = read(file.get(), text, sizeof(text));
  if (length <= 0) return "";
  if (peer.pidfd) {
    // Readable: the peer has exited, so the pid may be another's by now.
    pollfd exited{peer.pidfd.get(), POLLIN, 0};
    if (poll(&exited, 1, 0) > 0) return "";
  }
  if (text[length - 1] == '\n') --length;
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace rdmad::control
