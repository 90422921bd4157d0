#include "daemon/control/rpc_connection.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

namespace rdmad::control {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr size_t kBytesPerTurn = 16 * 1024;
// More is not fetched from the protocol while this much waits for the socket.
constexpr size_t kMostUnsent = 64 * 1024;

}  // namespace

RpcConnection::RpcConnection(boost::asio::io_context& loop, UniqueFd socket, OnCall on_call,
                             OnEnd on_end)
    : socket_(loop, socket.Release()), on_call_(std::move(on_call)), on_end_(std::move(on_end)) {}

void RpcConnection::Start() {
  Continue();
}

void RpcConnection::Close() {
  if (!socket_.is_open()) return;
  protocol_.Terminate();
  if (!broken_) Send();
  error_code ignored;
  socket_.close(ignored);
}

void RpcConnection::Receive() {
  std::array<char, kBytesPerTurn> bytes;
  const ssize_t count = recv(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Continue();
  if (count <= 0) return End();
  broken_ = !protocol_.Receive({bytes.data(), static_cast<size_t>(count)});
  Continue();
}

void RpcConnection::BeginNextCall() {
  if (std::exchange(calling_, true)) return;
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->calling_ = false;
    if (!self->socket_.is_open()) return;
    if (const std::optional<GrpcProtocol::Call> call = self->protocol_.TakeCall()) {
      self->on_call_(*call,
                     [self, stream = call->stream](const absl::Status& status, std::string reply) {
                       self->protocol_.Respond(stream, status, std::move(reply));
                       if (self->socket_.is_open()) self->Continue();
                     });
    }
    if (self->socket_.is_open()) self->Continue();
  });
}

void RpcConnection::Continue() {
  const bool all_sent = Send();
  if (broken_ || protocol_.over()) return End();
  if (!all_sent) return WaitToWrite();
  if (protocol_.HasCall()) return BeginNextCall();
  if (protocol_.unanswered() < GrpcProtocol::kMaxCalls) WaitToRead();
}

bool RpcConnection::Send() {
  for (;;) {
    while (unsent_.size() < kMostUnsent) {
      const std::string_view more = protocol_.Output();
      if (more.empty()) break;
      unsent_.append(more);
    }
    if (unsent_.empty()) return true;
    const ssize_t count = send(socket_.native_handle(), unsent_.data() + sent_,
                               unsent_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      // Who does not read is waited for; who has gone is noticed by reading.
      if (errno == EAGAIN) return false;
      unsent_.clear();
      sent_ = 0;
      broken_ = true;
      return true;
    }
    sent_ += static_cast<size_t>(count);
    if (sent_ < unsent_.size()) continue;
    unsent_.clear();
    sent_ = 0;
  }
}

void RpcConnection::WaitToRead() {
  if (std::exchange(reading_, true)) return;
  socket_.async_wait(stream_descriptor::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       self->reading_ = false;
                       if (error || !self->socket_.is_open()) return;
                       // What has to wait since comes first.
                       if (!self->writing_ && !self->calling_) self->Receive();
                     });
}

void RpcConnection::WaitToWrite() {
  if (std::exchange(writing_, true)) return;
  socket_.async_wait(stream_descriptor::wait_write,
                     [self = shared_from_this()](const error_code& error) {
                       self->writing_ = false;
                       if (!error && self->socket_.is_open()) self->Continue();
                     });
}

void RpcConnection::End() {
  Close();
  on_end_();
}

}  // namespace rdmad::control
