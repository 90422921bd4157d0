#include "daemon/control/rpc_door.h"

#include <sys/socket.h>

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
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr size_t kManyConnections = 32;

}  // namespace

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
      refusals_log_(20, kSecondNs) {
  WatchListener();
}

RpcDoor::~RpcDoor() = default;

void RpcDoor::WatchListener() {
  accept_watch_ = std::make_unique<AsioFdWatch>(loop_, listener_.get(), AsioFdWatch::For::kRead,
                                                [this] { OnAcceptable(); });
}

void RpcDoor::StopAccepting() {
  accept_watch_.reset();
  accept_timer_.cancel();
}

void RpcDoor::Close() {
  StopAccepting();
  for (const auto& [id, client] : clients_) client.connection->Close();
  clients_.clear();
  count_by_user_.clear();
  count_by_token_.clear();
}

void RpcDoor::OnAcceptable() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      return PauseAccepting();
    }
    if (const std::optional<Peer> peer = Admit(socket.get())) {
      ++counters_.connections;
      Serve(std::move(socket), *peer);
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

std::optional<Peer> RpcDoor::Admit(int socket) {
  absl::StatusOr<Peer> peer = PeerOf(socket);
  if (!peer.ok()) return std::nullopt;
  const auto refuse = [&](const std::string& why) {
    if (log_.Allow(MonotonicNs())) {
      Log("control").warn(
          "connection refused socket=rdmad.sock uid={} pid={} why=\"{}\" not_logged={}", peer->uid,
          peer->pid, why, log_.suppressed());
    }
    return std::nullopt;
  };
  if (absl::Status allowed = policy_->MayAttach(*peer); !allowed.ok())
    return refuse(std::string(allowed.message()));
  const auto user = count_by_user_.find(peer->uid);
  if (clients_.size() >= options_.max_connections ||
      (user != count_by_user_.end() && user->second >= options_.max_connections_per_user))
    return refuse("too many connections");
  return *std::move(peer);
}

void RpcDoor::Serve(UniqueFd socket, const Peer& peer) {
  MakeRoomForUnproven(peer.uid);
  const uint64_t id = ++last_id_;
  auto connection = std::make_shared<RpcConnection>(
      loop_, std::move(socket),
      [this, id](const GrpcProtocol::Call& call, RpcConnection::Respond respond) {
        OnCall(id, call, std::move(respond));
      },
      [this, id] { Forget(id); });
  clients_[id] = {peer.uid, peer.pid, "", connection};
  ++count_by_user_[peer.uid];
  connection->Start();
}

void RpcDoor::Forget(uint64_t id) {
  const auto client = clients_.find(id);
  const auto user = count_by_user_.find(client->second.uid);
  if (--user->second == 0) count_by_user_.erase(user);
  LeaveSession(client->second);
  clients_.erase(client);
  // Each has left some 50 KB in pieces, or ten times that if it was up to something.
  if (++gone_since_tidied_ < kManyConnections) return;
  gone_since_tidied_ = 0;
  registry_->TidyLater();
}

void RpcDoor::MakeRoomForUnproven(uid_t uid) {
  const auto user = count_by_user_.find(uid);
  if (user == count_by_user_.end() || user->second < options_.max_connections_without_session)
    return;
  size_t unproven = 0;
  uint64_t oldest = 0;
  for (const auto& [id, client] : clients_) {
    if (client.uid != uid ||
        (!client.token.empty() && registry_->FindByToken(client.token) != nullptr))
      continue;
    if (++unproven == 1) oldest = id;
  }
  if (unproven < options_.max_connections_without_session + registry_->CountOf(uid)) return;
  clients_[oldest].connection->Close();
  Forget(oldest);
}

absl::Status RpcDoor::Prove(Client& client, const std::string& token) {
  if (client.token == token) return absl::OkStatus();
  const auto others = count_by_token_.find(token);
  if (others != count_by_token_.end() && others->second >= options_.max_connections_per_session) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has too many connections to rdmad.sock: limit=",
                     options_.max_connections_per_session));
  }
  LeaveSession(client);
  client.token = token;
  ++count_by_token_[token];
  return absl::OkStatus();
}

void RpcDoor::LeaveSession(Client& client) {
  if (client.token.empty()) return;
  const auto session = count_by_token_.find(client.token);
  if (--session->second == 0) count_by_token_.erase(session);
  client.token.clear();
}

absl::StatusOr<Caller> RpcDoor::Authenticate(Client& client, const GrpcProtocol::Call& call) {
  session::Session* session = registry_->FindByToken(call.token);
  if (session == nullptr) {
    ++counters_.calls_without_session;
    return absl::UnauthenticatedError(
        absl::StrCat("the call's ", kTokenMetadataKey,
                     " names no session: it has ended, or was never attached"));
  }
  const session::SessionIdentity& who = session->identity();
  if (client.uid != who.uid && client.uid != 0) {
    ++counters_.calls_of_strangers;
    if (log_.Allow(MonotonicNs())) {
      Log("control").warn(
          "call denied method={} session={} session_uid={} caller_uid={} caller_pid={} "
          "why=\"another user's token\" not_logged={}",
          Printable(call.method), who.id, who.uid, client.uid, client.pid, log_.suppressed());
    }
    return absl::PermissionDeniedError("the session belongs to another user");
  }
  RD_RETURN_IF_ERROR(Prove(client, call.token));
  return Caller{session, policy_->IsPrivileged(who.uid)};
}

void RpcDoor::OnCall(uint64_t id, const GrpcProtocol::Call& call, RpcConnection::Respond respond) {
  ++counters_.calls;
  absl::StatusOr<Caller> caller = Authenticate(clients_.at(id), call);
  // The session may be gone when the answer comes.
  const session::SessionIdentity* const who = caller.ok() ? &caller->session->identity() : nullptr;
  const auto answer = [this, method = call.method, respond = std::move(respond),
                       session = who == nullptr ? 0 : who->id, uid = who == nullptr ? 0 : who->uid,
                       pid = who == nullptr ? 0 : who->pid](const absl::Status& status,
                                                            std::string reply) {
    if (!status.ok()) {
      ++counters_.calls_failed;
      Log("control").debug("call failed method={} status=\"{}\"", Printable(method),
                           status.ToString());
    }
    // Whoever runs the host is to find the number that somebody needs raised.
    if (absl::IsResourceExhausted(status) && refusals_log_.Allow(MonotonicNs())) {
      Log("control").info("call refused session={} uid={} pid={} why=\"{}\" not_logged={}", session,
                          uid, pid, Printable(std::string(status.message())),
                          refusals_log_.suppressed());
    }
    respond(status, std::move(reply));
  };
  if (!caller.ok()) return answer(caller.status(), "");
  Log("control").trace("call session={} method={}", caller->session->identity().id,
                       Printable(call.method));
  calls_->Invoke(call.method, *caller, call.request, answer);
}

}  // namespace rdmad::control
