// The TCP conversation by which the ibv_*_pingpong programs of rdma-core wire their queue pairs: a text for each QP of
// either end, the client's first, and at last the client's "done". Our end is in the namespace "peer".
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "tests/vm/our_qp.h"

namespace rdmad::testing {

class PingpongSocket {
 public:
  // Where a program that is a client connects to.
  static absl::StatusOr<UniqueFd> Listen(int port);
  static absl::StatusOr<PingpongSocket> Accept(const UniqueFd& listener);
  // To a program that is a server, and may not listen yet.
  static absl::StatusOr<PingpongSocket> Connect(const std::string& address, int port);

  absl::Status Send(const std::vector<QpAddress>& ours);
  absl::StatusOr<std::vector<QpAddress>> Receive(size_t count);
  absl::Status SendDone();
  absl::Status ReceiveDone();

 private:
  explicit PingpongSocket(UniqueFd fd);
  absl::Status SendAll(const std::string& bytes);
  absl::StatusOr<std::string> ReceiveAll(size_t bytes);

  UniqueFd fd_;
};

}  // namespace rdmad::testing
