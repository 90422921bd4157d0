// The door on rdmad.sock: who may come in, whose call it is, and what it asks.
//
// Connections are accepted here, so that the kernel says who connects; gRPC then serves them. A
// call counts as its session's only if its token does and if it comes over a connection of the
// session's own user (or root's): a token that leaked to another user is of no use to them. Calls
// arrive on gRPC's thread, are carried out on this one, and answered when they are done.
//
// What gRPC has read of a call it keeps until the call is whole, however long that takes, and
// nobody can bound it. So few connections are open that no living session answers for: a user's
// oldest of these goes when one too many comes. And a session has few connections.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/control/call_table.h"
#include "daemon/control/fd_watch.h"
#include "daemon/control/log.h"
#include "daemon/control/policy.h"
#include "daemon/control/rpc_server.h"
#include "daemon/control/session_registry.h"

namespace rdmad::control {

struct RpcDoorOptions {
  size_t max_connections = 8192;
  size_t max_connections_per_user = 2048;
  size_t max_connections_per_session = 4;
  size_t max_connections_without_session = 32;  // of one user
};

struct RpcCounters {
  uint64_t connections = 0;
  uint64_t connections_refused = 0;
  uint64_t calls = 0;
  uint64_t calls_failed = 0;  // answered with an error
  uint64_t calls_without_session = 0;
  uint64_t calls_of_strangers = 0;  // with the token of another user's session
};

class RpcDoor {
 public:
  // `listener` is a listening SOCK_STREAM socket. All pointers outlive the door; the policy may be
  // assigned anew.
  static absl::StatusOr<std::unique_ptr<RpcDoor>> Open(boost::asio::io_context& loop,
                                                       UniqueFd listener, const Policy* policy,
                                                       SessionRegistry* registry,
                                                       const CallTable* calls,
                                                       const RpcDoorOptions& options = {});
  RpcDoor(const RpcDoor&) = delete;
  RpcDoor& operator=(const RpcDoor&) = delete;
  ~RpcDoor();

  // Takes no more connections. Calls go on.
  void StopAccepting();
  // Cancels what is left and ends gRPC; `done` runs on the loop. When sessions have ended, so that
  // all calls were answered.
  void Close(std::function<void()> done);

  [[nodiscard]] const RpcCounters& counters() const noexcept { return counters_; }

 private:
  struct Connection {
    uid_t uid = 0;
    pid_t pid = 0;
    ino_t inode = 0;  // of the socket: tells whether the number is still this connection's
    int64_t since_ns = 0;
    std::string token;  // of the session that it has called for, empty before the first call
  };
  using Connections = std::map<int, Connection>;  // by the descriptor that gRPC has

  RpcDoor(boost::asio::io_context& loop, UniqueFd listener, const Policy* policy,
          SessionRegistry* registry, const CallTable* calls, const RpcDoorOptions& options);
  void WatchListener();
  void OnAcceptable();
  void PauseAccepting();
  // Refuses by returning false.
  bool Admit(int socket);
  // Drops the records of connections that have ended, of which nobody tells us. Rarely: who is
  // refused shall cost little.
  void Sweep();
  Connections::iterator Forget(Connections::iterator connection);
  // Drops the oldest connection of this user that no living session answers for, if there are too
  // many of these.
  void MakeRoomForUnproven(uid_t uid);
  // Notes that the connection serves the session of this token. Errors: ResourceExhausted.
  absl::Status Prove(Connection& connection, const std::string& token);
  void OnCall(const std::shared_ptr<RpcCall>& call);
  absl::StatusOr<Caller> Authenticate(const RpcCall& call);

  boost::asio::io_context& loop_;
  const UniqueFd listener_;
  const Policy* const policy_;
  SessionRegistry* const registry_;
  const CallTable* const calls_;
  const RpcDoorOptions options_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<AsioFdWatch> accept_watch_;
  boost::asio::steady_timer accept_timer_;
  Connections connections_;
  std::map<uid_t, size_t> count_by_user_;  // of connections_
  int64_t swept_at_ns_ = INT64_MIN / 2;
  RpcCounters counters_;
  LogLimiter log_;           // of who is turned away
  LogLimiter refusals_log_;  // of what sessions may not have
};

}  // namespace rdmad::control
