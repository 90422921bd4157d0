#include "daemon/control/attach_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/control/attach_packet.h"
#include "daemon/control/clock.h"
#include "daemon/control/version.h"
#include "proto/rdmad/v1/attach.pb.h"

namespace rdmad::control {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr size_t kMaxNameBytes = 64;
constexpr int64_t kSecondNs = 1'000'000'000;

absl::StatusOr<v1::AttachRequest> ParseRequest(const std::string& packet) {
  v1::AttachRequest request;
  if (!request.ParseFromString(packet)) {
    return absl::InvalidArgumentError("attach: the first packet is no AttachRequest");
  }
  if (request.protocol_version() != v1::PROTOCOL_VERSION_CURRENT) {
    return absl::FailedPreconditionError(absl::StrCat(
        "attach: the client speaks protocol version ", request.protocol_version(), ", rdmad ",
        kVersion, " speaks ", static_cast<int>(v1::PROTOCOL_VERSION_CURRENT),
        "; install matching versions of rdmad and librdmad"));
  }
  const std::string& name = request.client_name();
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("attach: client_name has ", name.size(), " bytes, limit=", kMaxNameBytes));
  }
  for (char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 0x7f) {
      return absl::InvalidArgumentError(
          "attach: client_name has a character that cannot be printed");
    }
  }
  return request;
}

}  // namespace

// One connection. It stands on the waiting list until its request was read; then its session's
// entry holds it.
class AttachServer::Connection final : public SessionLink,
                                       public std::enable_shared_from_this<Connection> {
 public:
  Connection(AttachServer* server, UniqueFd socket, Peer who)
      : peer(std::move(who)),
        server_(server),
        server_alive_(server->alive_),
        registry_(server->registry_),
        loop_(server->loop_),
        socket_(std::move(socket)),
        silence_timer_(server->loop_) {}

  void Start(std::chrono::milliseconds silence_limit) {
    watch_ = std::make_unique<AsioFdWatch>(loop_, socket_.get(), AsioFdWatch::For::kRead,
                                           [this] { OnReadable(); });
    silence_timer_.expires_after(silence_limit);
    silence_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || !*self->server_alive_ || self->state_ != State::kWaiting) return;
      ++self->server_->counters_.timed_out;
      self->Drop();
    });
  }

  // Forgets a connection that has no session.
  void Drop() {
    const std::shared_ptr<Connection> self = shared_from_this();
    if (*server_alive_) server_->StopWaiting(this);
    HangUp();
  }

  void Send(const v1::AttachReply& reply, std::span<const int> descriptors) {
    if (absl::Status sent = SendPacket(socket_.get(), reply.SerializeAsString(), descriptors);
        !sent.ok()) {
      registry_->End(this, absl::StrCat("attach reply: ", std::string(sent.message())));
    }
  }

  absl::Status SendDescriptor(uint64_t tag, v1::DescriptorKind kind, int fd) override {
    if (!socket_) return absl::UnavailableError("the client has hung up");
    v1::DescriptorDelivery delivery;
    delivery.set_tag(tag);
    delivery.set_kind(kind);
    return SendPacket(socket_.get(), delivery.SerializeAsString(), std::array<int, 1>{fd});
  }

  void HangUp() override {
    state_ = State::kClosed;
    silence_timer_.cancel();
    watch_.reset();
    socket_.Reset();
  }

  void BecomeSession() {
    state_ = State::kSession;
    silence_timer_.cancel();
    peer.pidfd.Reset();  // has served its purpose; one descriptor less per session
  }

  Peer peer;

 private:
  enum class State : uint8_t { kWaiting, kSession, kClosed };

  void OnReadable() {
    const std::shared_ptr<Connection> self = shared_from_this();  // what follows may let go of it
    std::string packet;
    const ReceiveResult result = ReceivePacket(socket_.get(), &packet);
    if (result == ReceiveResult::kNothing) return;
    if (state_ == State::kSession) {
      registry_->End(this, result == ReceiveResult::kHungUp
                               ? "hung up"
                               : "sent something on its attach socket");
      return;
    }
    if (!*server_alive_ || result == ReceiveResult::kHungUp) return Drop();
    switch (result) {
      case ReceiveResult::kPacket:
        return server_->OnRequest(self, packet);
      case ReceiveResult::kTooLong:
        return server_->Refuse(
            self, absl::InvalidArgumentError(absl::StrCat("attach: the packet is over ",
                                                          kMaxAttachPacketBytes, " bytes")));
      case ReceiveResult::kDescriptors:
        return server_->Refuse(self,
                               absl::InvalidArgumentError("attach: rdmad takes no descriptors"));
      case ReceiveResult::kNothing:
      case ReceiveResult::kHungUp:
        return;
    }
  }

  AttachServer* const server_;  // while *server_alive_
  const std::shared_ptr<bool> server_alive_;
  SessionRegistry* const registry_;
  boost::asio::io_context& loop_;
  State state_ = State::kWaiting;
  UniqueFd socket_;
  std::unique_ptr<AsioFdWatch> watch_;
  boost::asio::steady_timer silence_timer_;
};

AttachServer::AttachServer(boost::asio::io_context& loop, UniqueFd listener, const Policy* policy,
                           SessionRegistry* registry, const AttachServerOptions& options)
    : loop_(loop),
      listener_(std::move(listener)),
      policy_(policy),
      registry_(registry),
      options_(options),
      accept_timer_(loop),
      refusal_log_(20, kSecondNs),
      alive_(std::make_shared<bool>(true)) {
  accept_watch_ = std::make_unique<AsioFdWatch>(loop_, listener_.get(), AsioFdWatch::For::kRead,
                                                [this] { OnAcceptable(); });
}

AttachServer::~AttachServer() {
  Stop();
  *alive_ = false;
}

void AttachServer::Stop() {
  accept_watch_.reset();
  accept_timer_.cancel();
  while (!waiting_.empty()) waiting_.front()->Drop();
}

void AttachServer::OnAcceptable() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      ++counters_.accept_errors;
      return PauseAccepting();
    }
    absl::StatusOr<Peer> peer = PeerOf(socket.get());
    if (!peer.ok()) continue;
    ++counters_.accepted;
    MakeRoom(peer->uid);
    auto connection = std::make_shared<Connection>(this, std::move(socket), *std::move(peer));
    waiting_.push_back(connection);
    connection->Start(options_.silence_limit);
  }
}

// Out of descriptors or memory: the listener stays readable, so looking again at once would spin.
void AttachServer::PauseAccepting() {
  if (refusal_log_.Allow(MonotonicNs())) {
    Log("control").error("cannot accept on attach.sock: errno={}; raise the limit of open files",
                         errno);
  }
  accept_watch_.reset();
  accept_timer_.expires_after(options_.accept_pause);
  accept_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    accept_watch_ = std::make_unique<AsioFdWatch>(loop_, listener_.get(), AsioFdWatch::For::kRead,
                                                  [this] { OnAcceptable(); });
  });
}

void AttachServer::MakeRoom(uid_t uid) {
  size_t of_user = 0;
  std::shared_ptr<Connection> oldest_of_user;
  for (const std::shared_ptr<Connection>& connection : waiting_) {
    if (connection->peer.uid != uid) continue;
    ++of_user;
    if (oldest_of_user == nullptr) oldest_of_user = connection;
  }
  if (of_user >= options_.max_waiting_per_user) {
    ++counters_.timed_out;
    oldest_of_user->Drop();
  } else if (waiting_.size() >= options_.max_waiting) {
    ++counters_.timed_out;
    waiting_.front()->Drop();
  }
}

void AttachServer::StopWaiting(const Connection* connection) {
  waiting_.remove_if([connection](const auto& other) { return other.get() == connection; });
}

void AttachServer::OnRequest(const std::shared_ptr<Connection>& connection,
                             const std::string& packet) {
  StopWaiting(connection.get());
  if (absl::Status allowed = policy_->MayAttach(connection->peer); !allowed.ok()) {
    return Refuse(connection, allowed);
  }
  absl::StatusOr<v1::AttachRequest> request = ParseRequest(packet);
  if (!request.ok()) return Refuse(connection, request.status());
  session::SessionIdentity identity;
  identity.pid = connection->peer.pid;
  identity.uid = connection->peer.uid;
  identity.gid = connection->peer.gid;
  identity.privileged = policy_->IsPrivileged(identity.uid);
  identity.name =
      request->client_name().empty() ? Printable(CommOf(connection->peer)) : request->client_name();
  connection->BecomeSession();
  registry_->Open(
      connection, std::move(identity),
      [this, alive = alive_, connection](absl::StatusOr<SessionRegistry::Opened> opened) {
        if (*alive) return OnOpened(connection, std::move(opened));
        connection->HangUp();
      });
}

void AttachServer::OnOpened(const std::shared_ptr<Connection>& connection,
                            absl::StatusOr<SessionRegistry::Opened> opened) {
  if (!opened.ok()) return Refuse(connection, opened.status());
  ++counters_.attached;
  const session::AttachGift& gift = opened->gift;
  v1::AttachReply reply;
  reply.set_token(opened->token);
  reply.set_session_id(opened->session_id);
  reply.set_protocol_version(v1::PROTOCOL_VERSION_CURRENT);
  reply.set_daemon_version(kVersion);
  reply.set_engine_index(gift.engine_index);
  reply.set_control_segment_bytes(gift.control_segment_bytes);
  reply.set_engine_page_bytes(gift.engine_page_bytes);
  connection->Send(reply, std::array<int, 4>{gift.control_segment, gift.engine_page,
                                             gift.wake_pipe.get(), gift.async_channel.get()});
}

void AttachServer::Refuse(const std::shared_ptr<Connection>& connection, const absl::Status& why) {
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    ++counters_.malformed;
  } else {
    ++counters_.refused;
  }
  if (refusal_log_.Allow(MonotonicNs())) {
    const std::string message(why.message());
    Log("control").warn("attach refused uid={} gid={} pid={} why=\"{}\" not_logged={}",
                        connection->peer.uid, connection->peer.gid, connection->peer.pid,
                        Printable(message), refusal_log_.suppressed());
  }
  v1::AttachReply reply;
  reply.set_code(static_cast<int32_t>(why.code()));
  reply.set_message(std::string(why.message()));
  reply.set_protocol_version(v1::PROTOCOL_VERSION_CURRENT);
  reply.set_daemon_version(kVersion);
  connection->Send(reply, {});
  connection->Drop();
}

}  // namespace rdmad::control
