// Takes connections on attach.sock and makes sessions of them (proto/rdmad/v1/attach.proto).
//
// A connection says who it is in one packet, within a few seconds; the kernel says who that really
// is; the policy decides. A connection that stays silent is dropped, and so is the oldest silent
// one when there are too many, per user first, so that nobody can keep others out. A connection
// that has attached *is* its session: when it hangs up, the session ends, and anything it sends is
// a fault that ends it as well.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "daemon/base/unique_fd.h"
#include "daemon/control/fd_watch.h"
#include "daemon/control/log.h"
#include "daemon/control/policy.h"
#include "daemon/control/session_registry.h"

namespace rdmad::control {

struct AttachServerOptions {
  std::chrono::milliseconds silence_limit{5000};  // from connect to AttachRequest
  size_t max_waiting = 1024;
  size_t max_waiting_per_user = 128;
  std::chrono::milliseconds accept_pause{100};  // when the process has no descriptor left
};

struct AttachCounters {
  uint64_t accepted = 0;
  uint64_t attached = 0;
  uint64_t refused = 0;    // by policy, limit or version
  uint64_t malformed = 0;  // packets that no correct library sends
  uint64_t timed_out = 0;  // silent too long, or dropped for another
  uint64_t accept_errors = 0;
};

class AttachServer {
 public:
  // `listener` is a listening SOCK_SEQPACKET socket. `policy` and `registry` outlive the server;
  // the policy may be assigned anew.
  AttachServer(boost::asio::io_context& loop, UniqueFd listener, const Policy* policy,
               SessionRegistry* registry, const AttachServerOptions& options = {});
  ~AttachServer();
  AttachServer(const AttachServer&) = delete;
  AttachServer& operator=(const AttachServer&) = delete;

  // Takes no more connections and drops those that have not attached. Sessions go on.
  void Stop();

  [[nodiscard]] const AttachCounters& counters() const noexcept { return counters_; }

 private:
  class Connection;

  void OnAcceptable();
  void PauseAccepting();
  void MakeRoom(uid_t uid);
  // Takes it off the waiting list.
  void StopWaiting(const Connection* connection);
  void OnRequest(const std::shared_ptr<Connection>& connection, const std::string& packet);
  void OnOpened(const std::shared_ptr<Connection>& connection,
                absl::StatusOr<SessionRegistry::Opened> opened);
  void Refuse(const std::shared_ptr<Connection>& connection, const absl::Status& why);

  boost::asio::io_context& loop_;
  const UniqueFd listener_;
  const Policy* const policy_;
  SessionRegistry* const registry_;
  const AttachServerOptions options_;
  std::unique_ptr<AsioFdWatch> accept_watch_;
  boost::asio::steady_timer accept_timer_;
  std::list<std::shared_ptr<Connection>> waiting_;  // oldest first
  AttachCounters counters_;
  LogLimiter refusal_log_;
  // Connections outlive the server where their sessions do.
  std::shared_ptr<bool> alive_;
};

}  // namespace rdmad::control
