#include "daemon/control/rpc_door.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/control/clock.h"
#include "daemon/control/peer.h"

namespace rdmad::control {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr int64_t kSweepEveryNs = 100'000'000;
constexpr int64_t kSecondNs = 1'000'000'000;

ino_t InodeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcDoor>> RpcDoor::Open(boost::asio::io_context& loop,
                                                       UniqueFd listener, const Policy* policy,
                                                       SessionRegistry* registry,
                                                       const CallTable* calls,
                                                       const RpcDoorOptions& options) {
  std::unique_ptr<RpcDoor> door(
      new RpcDoor(loop, std::move(listener), policy, registry, calls, options));
  RD_ASSIGN_OR_RETURN(door->server_, RpcServer::Start([raw = door.get()](RpcCall call) {
                        auto shared = std::make_shared<RpcCall>(std::move(call));
                        boost::asio::post(raw->loop_, [raw, shared] { raw->OnCall(shared); });
                      }));
  door->WatchListener();
  return door;
}

RpcDoor::RpcDoor(boost::asio::io_context& loop, UniqueFd listener, const Policy* policy,
                 SessionRegistry* registry, const CallTable* calls, const RpcDoorOptions& options)
    : loop_(loop),
      listener_(std::move(listener)),
      policy_(policy),
      registry_(registry),
      calls_(calls),
      options_(options),
      accept_timer_(loop),
      log_(20, kSecondNs),
      refusals_log_(20, kSecondNs) {}

RpcDoor::~RpcDoor() = default;

void RpcDoor::WatchListener() {
  accept_watch_ = std::make_unique<AsioFdWatch>(loop_, listener_.get(), AsioFdWatch::For::kRead,
                                                [this] { OnAcceptable(); });
}

void RpcDoor::StopAccepting() {
  accept_watch_.reset();
  accept_timer_.cancel();
}

void RpcDoor::Close(std::function<void()> done) {
  StopAccepting();
  // gRPC waits for calls that are still on their way to this thread, so it must wait on another.
  registry_->RunSlowly([this] { server_->Shutdown(); }, std::move(done));
}

void RpcDoor::OnAcceptable() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      return PauseAccepting();
    }
    if (Admit(socket.get())) {
      ++counters_.connections;
      server_->AddConnection(std::move(socket));
    } else {
      ++counters_.connections_refused;
    }
  }
}

// Out of descriptors or memory: the listener stays readable, so looking again at once would spin.
void RpcDoor::PauseAccepting() {
  if (log_.Allow(MonotonicNs())) {
    Log("control").error("cannot accept on rdmad.sock: errno={}; raise the limit of open files",
                         errno);
  }
  accept_watch_.reset();
  accept_timer_.expires_after(kAcceptPause);
  accept_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) WatchListener();
  });
}

bool RpcDoor::Admit(int socket) {
  absl::StatusOr<Peer> peer = PeerOf(socket);
  if (!peer.ok()) return false;
  const auto refuse = [&](const std::string& why) {
    if (log_.Allow(MonotonicNs())) {
      Log("control").warn(
          "connection refused socket=rdmad.sock uid={} pid={} why=\"{}\" not_logged={}", peer->uid,
          peer->pid, why, log_.suppressed());
    }
    return false;
  };
  if (absl::Status allowed = policy_->MayAttach(*peer); !allowed.ok())
    return refuse(std::string(allowed.message()));

  const auto too_many = [this, uid = peer->uid] {
    const auto user = count_by_user_.find(uid);
    return connections_.size() >= options_.max_connections ||
           (user != count_by_user_.end() && user->second >= options_.max_connections_per_user);
  };
  if (too_many()) {
    Sweep();
    if (too_many()) return refuse("too many connections");
  }
  MakeRoomForUnproven(peer->uid);
  // The number may be a connection's that has ended unseen.
  if (const auto old = connections_.find(socket); old != connections_.end()) Forget(old);
  connections_[socket] = {peer->uid, peer->pid, InodeOf(socket), MonotonicNs(), ""};
  ++count_by_user_[peer->uid];
  return true;
}

void RpcDoor::Sweep() {
  const int64_t now = MonotonicNs();
  if (now - swept_at_ns_ < kSweepEveryNs) return;
  swept_at_ns_ = now;
  for (auto it = connections_.begin(); it != connections_.end();) {
    it = InodeOf(it->first) == it->second.inode ? std::next(it) : Forget(it);
  }
}

void RpcDoor::MakeRoomForUnproven(uid_t uid) {
  const auto user = count_by_user_.find(uid);
  if (user == count_by_user_.end() || user->second < options_.max_connections_without_session)
    return;
  size_t unproven = 0;
  auto oldest = connections_.end();
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& connection = it->second;
    if (connection.uid != uid ||
        (!connection.token.empty() && registry_->FindByToken(connection.token) != nullptr)) {
      ++it;
    } else if (InodeOf(it->first) != connection.inode) {
      it = Forget(it);
    } else {
      ++unproven;
      if (oldest == connections_.end() || connection.since_ns < oldest->second.since_ns)
        oldest = it;
      ++it;
    }
  }
  if (unproven < options_.max_connections_without_session) return;
  // gRPC sees the end of it and closes it. No other socket can have got its number meanwhile: they
  // are all made on this thread.
  ::shutdown(oldest->first, SHUT_RDWR);
  Forget(oldest);
}

absl::Status RpcDoor::Prove(Connection& connection, const std::string& token) {
  if (connection.token == token) return absl::OkStatus();
  size_t others = 0;
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (it->second.token != token) {
      ++it;
    } else if (InodeOf(it->first) != it->second.inode) {
      it = Forget(it);
    } else {
      ++others;
      ++it;
    }
  }
  if (others >= options_.max_connections_per_session) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has too many connections to rdmad.sock: limit=",
                     options_.max_connections_per_session));
  }
  connection.token = token;
  return absl::OkStatus();
}

RpcDoor::Connections::iterator RpcDoor::Forget(Connections::iterator connection) {
  const auto user = count_by_user_.find(connection->second.uid);
  if (--user->second == 0) count_by_user_.erase(user);
  return connections_.erase(connection);
}

absl::StatusOr<Caller> RpcDoor::Authenticate(const RpcCall& call) {
  session::Session* session = registry_->FindByToken(call.token);
  const auto connection = connections_.find(call.connection);
  const bool known = connection != connections_.end();
  if (session == nullptr) {
    ++counters_.calls_without_session;
    return absl::UnauthenticatedError(
        absl::StrCat("the call's ", kTokenMetadataKey,
                     " names no session: it has ended, or was never attached"));
  }
  const session::SessionIdentity& who = session->identity();
  if (!known || (connection->second.uid != who.uid && connection->second.uid != 0)) {
    ++counters_.calls_of_strangers;
    if (log_.Allow(MonotonicNs())) {
      Log("control").warn(
          "call denied method={} session={} session_uid={} caller_uid={} caller_pid={} "
          "why=\"another user's token\" not_logged={}",
          Printable(call.method), who.id, who.uid,
          known ? absl::StrCat(connection->second.uid) : std::string("unknown"),
          known ? connection->second.pid : 0, log_.suppressed());
    }
    return absl::PermissionDeniedError("the session belongs to another user");
  }
  RD_RETURN_IF_ERROR(Prove(connection->second, call.token));
  return Caller{session, policy_->IsPrivileged(who.uid)};
}

void RpcDoor::OnCall(const std::shared_ptr<RpcCall>& call) {
  ++counters_.calls;
  absl::StatusOr<Caller> caller = Authenticate(*call);
  // The session may be gone when the answer comes.
  const session::SessionIdentity* const who =
      caller.ok() ? &caller->session->identity() : nullptr;
  const auto answer = [this, call, session = who == nullptr ? 0 : who->id,
                       uid = who == nullptr ? 0 : who->uid, pid = who == nullptr ? 0 : who->pid](
                          const absl::Status& status, const std::string& reply) {
    if (!status.ok()) {
      ++counters_.calls_failed;
      Log("control").debug("call failed method={} status=\"{}\"", call->method, status.ToString());
    }
    // Whoever runs the host is to find the number that somebody needs raised.
    if (absl::IsResourceExhausted(status) && refusals_log_.Allow(MonotonicNs())) {
      Log("control").info("call refused session={} uid={} pid={} why=\"{}\" not_logged={}", session,
                          uid, pid, Printable(std::string(status.message())),
                          refusals_log_.suppressed());
    }
    call->respond(status, reply);
  };
  if (!caller.ok()) return answer(caller.status(), "");
  Log("control").trace("call session={} method={}", caller->session->identity().id,
                       Printable(call->method));
  calls_->Invoke(call->method, *caller, call->request, answer);
}

}  // namespace rdmad::control
