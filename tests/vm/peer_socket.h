// Our end, in the namespace "peer", of the TCP connection by which a program over rxe wires its queue pairs with a peer.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::testing {

class PeerSocket {
 public:
  // Where a program that is a client connects to.
  static absl::StatusOr<UniqueFd> Listen(int port);
  static absl::StatusOr<PeerSocket> Accept(const UniqueFd& listener);
  // To a program that is a server, and may not listen yet.
  static absl::StatusOr<PeerSocket> Connect(const std::string& address, int port);

  absl::Status Send(const std::string& bytes);
  // So many, waiting for them.
  absl::StatusOr<std::string> Receive(size_t bytes);
  // Up to so many of those that are there, which stay; waits until there is one. Empty: the peer has closed.
  absl::StatusOr<std::string> Peek(size_t bytes);
  // Whether Peek() would not wait.
  bool IsReadable() const;

 private:
  explicit PeerSocket(UniqueFd fd);

  UniqueFd fd_;
};

}  // namespace rdmad::testing
