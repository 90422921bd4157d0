// The door on rdmad.sock: who may come in, whose call it is, and what it asks.
//
// A call counts as its session's only if its token does and if it comes over a connection of the
// session's own user (or root's): a token that leaked to another user is of no use to them.
//
// What a connection can make us keep is bounded (grpc_protocol.h), and so are connections: few are
// open that no living session answers for, a user's oldest of these goes when one too many comes;
// and a session has few.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/control/call_table.h"
#include "daemon/control/fd_watch.h"
#include "daemon/control/grpc_protocol.h"
#include "daemon/control/log.h"
#include "daemon/control/peer.h"
#include "daemon/control/policy.h"
#include "daemon/control/rpc_connection.h"
#include "daemon/control/session_registry.h"

namespace rdmad::control {

struct RpcDoorOptions {
  size_t max_connections = 8192;
  size_t max_connections_per_user = 2048;
  size_t max_connections_per_session = 4;
  // Of one user, besides one for each session of theirs, whose first call may be on its way.
  size_t max_connections_without_session = 32;
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
  RpcDoor(boost::asio::io_context& loop, UniqueFd listener, const Policy* policy,
          SessionRegistry* registry, const CallTable* calls, const RpcDoorOptions& options = {});
  RpcDoor(const RpcDoor&) = delete;
  RpcDoor& operator=(const RpcDoor&) = delete;
  ~RpcDoor();

  // Takes no more connections. Calls go on.
  void StopAccepting();
  // Hangs up on everybody. When sessions have ended, so that all calls were answered.
  void Close();

  [[nodiscard]] const RpcCounters& counters() const noexcept { return counters_; }

 private:
  struct Client {
    uid_t uid = 0;
    pid_t pid = 0;
    std::string token;  // of the session that it has called for, empty before the first call
    std::shared_ptr<RpcConnection> connection;
  };
  using Clients = std::map<uint64_t, Client>;  // the oldest first

  void WatchListener();
  void OnAcceptable();
  void PauseAccepting();
  // None: refused.
  std::optional<Peer> Admit(int socket);
  void Serve(UniqueFd socket, const Peer& peer);
  void Forget(uint64_t id);
  // Drops the oldest connection of this user that no living session answers for, if there are too
  // many of these.
  void MakeRoomForUnproven(uid_t uid);
  // Notes that the connection serves the session of this token. Errors: ResourceExhausted.
  absl::Status Prove(Client& client, const std::string& token);
  void LeaveSession(Client& client);
  void OnCall(uint64_t id, const GrpcProtocol::Call& call, RpcConnection::Respond respond);
  absl::StatusOr<Caller> Authenticate(Client& client, const GrpcProtocol::Call& call);

  boost::asio::io_context& loop_;
  const UniqueFd listener_;
  const Policy* const policy_;
  SessionRegistry* const registry_;
  const CallTable* const calls_;
  const RpcDoorOptions options_;
  std::unique_ptr<AsioFdWatch> accept_watch_;
  boost::asio::steady_timer accept_timer_;
  Clients clients_;
  uint64_t last_id_ = 0;
  std::map<uid_t, size_t> count_by_user_;  // of clients_
  std::unordered_map<std::string, size_t> count_by_token_;  // of those that have one
  size_t gone_since_tidied_ = 0;
  RpcCounters counters_;
  LogLimiter log_;           // of who is turned away
  LogLimiter refusals_log_;  // of what sessions may not have
};

}  // namespace rdmad::control
