// The TCP conversation by which the ibv_*_pingpong programs of rdma-core wire their queue pairs: a text for each QP of
// either end, the client's first, and at last the client's "done".
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/vm/our_qp.h"
#include "tests/vm/peer_socket.h"

namespace rdmad::testing {

class PingpongSocket {
 public:
  explicit PingpongSocket(PeerSocket socket) : socket_(std::move(socket)) {}

  absl::Status Send(const std::vector<QpAddress>& ours);
  absl::StatusOr<std::vector<QpAddress>> Receive(size_t count);
  absl::Status SendDone();
  absl::Status ReceiveDone();

 private:
  PeerSocket socket_;
};

}  // namespace rdmad::testing
