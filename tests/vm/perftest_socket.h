// The TCP conversation of perftest's programs (ib_send_bw and its like, 4.5 of Debian 12), as a look at two of them shows it. The client
// says something, the server answers with the same: at first the version, two sizes and the path MTU; then a line that
// describes its end, which is said again wherever both are to wait for each other; figures, where only one side has measured;
// and "done".
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"
#include "tests/vm/our_qp.h"
#include "tests/vm/peer_socket.h"

namespace rdmad::testing {

// One end: its QP, and the memory that the peer may use.
struct PerftestEnd {
  QpAddress qp;
  uint32_t reads = 1;  // how many READs and atomics may be outstanding; 1 where there are none
  uint32_t rkey = 0;
  uint64_t addr = 0;
};

class PerftestSocket {
 public:
  explicit PerftestSocket(PeerSocket socket) : socket_(std::move(socket)) {}

  // The beginning, as client and as server.
  absl::Status Greet(Mtu mtu);
  absl::Status AnswerGreeting(Mtu mtu);

  // The client's: says who we are and hears who the server is; or, the second time, waits for it.
  absl::StatusOr<PerftestEnd> Exchange(const PerftestEnd& ours);
  // The client's figures, which the server prints.
  absl::Status ReportFigures(size_t bytes, int rounds);
  absl::Status SayDone();

  // The server's: the client's first line.
  absl::StatusOr<PerftestEnd> Hear();
  absl::Status Say(const PerftestEnd& ours);
  // Answers all that the client has said by now. False: the client is done.
  absl::StatusOr<bool> AnswerWhatIsThere(const PerftestEnd& ours);
  // Lines heard by now.
  int heard() const { return heard_; }

 private:
  PeerSocket socket_;
  int heard_ = 0;
};

}  // namespace rdmad::testing
