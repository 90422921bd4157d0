// Endpoints and listeners for Boost.Asio: async_connect, async_accept, async_send, async_receive, async_write,
// async_read and async_flush, with any completion token.
//
//   auto endpoint = co_await rdmad::async_connect(executor, client, peer, {}, boost::asio::use_awaitable);
//   absl::StatusOr<rdmad::Buffer> message = co_await endpoint->async_receive(boost::asio::use_awaitable);
//
// Errors arrive as absl::Status, never as exceptions. Waiting costs no thread: the loop sleeps on the descriptors of the
// endpoints. Making and ending connections asks the daemon in between, which takes well under a millisecond each time.
// Thread: as Asio's sockets: one object in one strand at a time.
#pragma once

#include <fcntl.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/address.h"
#include "rdmad/client.h"
#include "rdmad/endpoint.h"

namespace rdmad {

namespace asio_detail {

namespace asio = boost::asio;

// A completion handler of any type, to be called once with a Result, by way of its own executor.
template <typename Result>
class Handler {
 public:
  Handler() = default;
  template <typename Function>
  Handler(Function function, const asio::any_io_executor& fallback)
      : base_(std::make_unique<Typed<Function>>(std::move(function), fallback)) {}
  void Complete(Result result) { std::exchange(base_, nullptr)->Complete(std::move(result)); }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void Complete(Result result) = 0;
  };
  template <typename Function>
  struct Typed final : Base {
    Typed(Function handler, const asio::any_io_executor& fallback)
        : function(std::move(handler)), work(asio::get_associated_executor(function, fallback)) {}
    void Complete(Result result) override {
      const auto executor = work.get_executor();
      asio::post(executor, [handler = std::move(function), result = std::move(result)]() mutable {
        handler(std::move(result));
      });
    }
    Function function;
    asio::executor_work_guard<asio::associated_executor_t<Function, asio::any_io_executor>> work;
  };
  std::unique_ptr<Base> base_;
};

// Waits for a descriptor that belongs to somebody else, by way of a duplicate.
class Readiness {
 public:
  explicit Readiness(const asio::any_io_executor& executor) : descriptor_(executor) {}
  // Watches `fd` from now on.
  void Assign(int fd) {
    boost::system::error_code ignored;
    descriptor_.close(ignored);
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) descriptor_.assign(copy, ignored);
  }
  template <typename Function>
  void Wait(Function function) {
    descriptor_.async_wait(asio::posix::stream_descriptor::wait_read, std::move(function));
  }
  void Close() {
    boost::system::error_code ignored;
    descriptor_.close(ignored);
  }
  bool is_open() const { return descriptor_.is_open(); }

 private:
  asio::posix::stream_descriptor descriptor_;
};

// The operations of one endpoint that wait, each kind in order.
class EndpointLoop : public std::enable_shared_from_this<EndpointLoop> {
 public:
  EndpointLoop(asio::any_io_executor executor, Endpoint endpoint)
      : executor_(std::move(executor)), endpoint_(std::move(endpoint)), readiness_(executor_) {
    readiness_.Assign(endpoint_.fd());
  }

  const asio::any_io_executor& executor() const { return executor_; }
  Endpoint& endpoint() { return endpoint_; }

  void Receive(Handler<absl::StatusOr<Buffer>> handler) {
    receives_.push_back(std::move(handler));
    Run();
  }
  void Send(Buffer buffer, std::optional<uint32_t> imm, Handler<absl::Status> handler) {
    sends_.push_back({std::move(buffer), imm, std::move(handler)});
    Run();
  }
  void OneSided(bool is_read, const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes,
                std::optional<uint32_t> imm, Handler<absl::Status> handler) {
    starting_.push_back({is_read, &local, remote, offset_bytes, imm, std::move(handler)});
    Run();
  }
  void Flush(Handler<absl::Status> handler) {
    flushes_.push_back(std::move(handler));
    Run();
  }
  void Close() {
    closed_ = true;
    readiness_.Close();
    endpoint_.Close(absl::ZeroDuration()).IgnoreError();
    Run();
  }

 private:
  struct SendOperation {
    Buffer buffer;
    std::optional<uint32_t> imm;
    Handler<absl::Status> handler;
  };
  struct StartOperation {
    bool is_read;
    const Buffer* local;
    RemoteBuffer remote;
    uint64_t offset_bytes;
    std::optional<uint32_t> imm;
    Handler<absl::Status> handler;
  };
  struct RunningOperation {
    uint64_t number;
    Handler<absl::Status> handler;
  };

  // Does what can be done, then sleeps if something is left.
  void Run() {
    while (true) {
      RunReceives();
      RunSends();
      RunOneSided();
      RunFlushes();
      const bool receives = !receives_.empty();
      const bool sends = !sends_.empty() || !starting_.empty() || !running_.empty() || !flushes_.empty();
      if (!receives && !sends) return;
      if (!endpoint_.Arm(receives, sends)) continue;
      if (waiting_) return;
      waiting_ = true;
      readiness_.Wait([self = shared_from_this()](const boost::system::error_code&) {
        self->waiting_ = false;
        self->Run();
      });
      return;
    }
  }

  void RunReceives() {
    while (!receives_.empty()) {
      absl::StatusOr<std::optional<Buffer>> buffer = endpoint_.TryReceive();
      if (buffer.ok() && !buffer->has_value()) return;
      Handler<absl::StatusOr<Buffer>> handler = std::move(receives_.front());
      receives_.pop_front();
      if (buffer.ok()) {
        handler.Complete(std::move(**buffer));
      } else {
        handler.Complete(Why(buffer.status()));
      }
    }
  }
  void RunSends() {
    while (!sends_.empty()) {
      const absl::StatusOr<bool> sent = endpoint_.TrySend(sends_.front().buffer, sends_.front().imm);
      if (sent.ok() && !*sent) return;
      SendOperation operation = std::move(sends_.front());
      sends_.pop_front();
      operation.handler.Complete(Why(sent.status()));
    }
  }
  void RunOneSided() {
    while (!starting_.empty()) {
      const StartOperation& next = starting_.front();
      const absl::StatusOr<std::optional<uint64_t>> number =
          next.is_read ? endpoint_.TryStartRead(*next.local, next.remote, next.offset_bytes)
                       : endpoint_.TryStartWrite(*next.local, next.remote, next.offset_bytes, next.imm);
      if (number.ok() && !number->has_value()) break;
      StartOperation operation = std::move(starting_.front());
      starting_.pop_front();
      if (number.ok()) {
        running_.push_back({**number, std::move(operation.handler)});
      } else {
        operation.handler.Complete(Why(number.status()));
      }
    }
    while (!running_.empty()) {
      const absl::StatusOr<bool> done = endpoint_.TryDone(running_.front().number);
      if (done.ok() && !*done) return;
      RunningOperation operation = std::move(running_.front());
      running_.pop_front();
      operation.handler.Complete(Why(done.status()));
    }
  }
  void RunFlushes() {
    while (!flushes_.empty()) {
      const absl::StatusOr<bool> done = endpoint_.TryFlush();
      if (done.ok() && !*done) return;
      Handler<absl::Status> handler = std::move(flushes_.front());
      flushes_.pop_front();
      handler.Complete(Why(done.status()));
    }
  }
  absl::Status Why(const absl::Status& status) const {
    return closed_ && !status.ok() ? absl::CancelledError("the endpoint was closed") : status;
  }

  const asio::any_io_executor executor_;
  Endpoint endpoint_;
  Readiness readiness_;
  bool waiting_ = false;
  bool closed_ = false;
  std::deque<Handler<absl::StatusOr<Buffer>>> receives_;
  std::deque<SendOperation> sends_;
  std::deque<StartOperation> starting_;
  std::deque<RunningOperation> running_;
  std::deque<Handler<absl::Status>> flushes_;
};

}  // namespace asio_detail

// An Endpoint in an event loop. Move-only. Destroying it, or Close, ends the connection at once: what was sent and not
// yet flushed may be lost (async_flush first), and operations that wait complete with Cancelled.
class AsioEndpoint {
 public:
  using executor_type = boost::asio::any_io_executor;

  // `endpoint` must not be one of WaitStyle::kPolled.
  AsioEndpoint(executor_type executor, Endpoint endpoint)
      : loop_(std::make_shared<asio_detail::EndpointLoop>(std::move(executor), std::move(endpoint))) {}
  AsioEndpoint(AsioEndpoint&&) noexcept = default;
  AsioEndpoint& operator=(AsioEndpoint&& other) noexcept {
    Close();
    loop_ = std::move(other.loop_);
    return *this;
  }
  ~AsioEndpoint() { Close(); }

  executor_type get_executor() const { return loop_->executor(); }
  // For addresses, Share and the like; not for its calls that wait.
  Endpoint& endpoint() { return loop_->endpoint(); }

  // The next message. Signature: void(absl::StatusOr<Buffer>). Errors: as Endpoint::Receive.
  template <typename Token>
  auto async_receive(Token&& token) {
    return boost::asio::async_initiate<Token, void(absl::StatusOr<Buffer>)>(
        [loop = loop_](auto handler) {
          loop->Receive(asio_detail::Handler<absl::StatusOr<Buffer>>(std::move(handler), loop->executor()));
        },
        token);
  }

  // Completes when the message is queued. Signature of this and the following: void(absl::Status).
  template <typename Token>
  auto async_send(Buffer buffer, Token&& token) {
    return boost::asio::async_initiate<Token, void(absl::Status)>(
        [loop = loop_](auto handler, Buffer message) {
          loop->Send(std::move(message), std::nullopt,
                     asio_detail::Handler<absl::Status>(std::move(handler), loop->executor()));
        },
        token, std::move(buffer));
  }

  // Completes when the bytes have moved. `local` must stay until then.
  template <typename Token>
  auto async_write(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes, Token&& token) {
    return OneSided(false, local, remote, offset_bytes, std::forward<Token>(token));
  }
  template <typename Token>
  auto async_read(const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes, Token&& token) {
    return OneSided(true, local, remote, offset_bytes, std::forward<Token>(token));
  }

  // Completes when everything sent so far has arrived.
  template <typename Token>
  auto async_flush(Token&& token) {
    return boost::asio::async_initiate<Token, void(absl::Status)>(
        [loop = loop_](auto handler) {
          loop->Flush(asio_detail::Handler<absl::Status>(std::move(handler), loop->executor()));
        },
        token);
  }

  void Close() {
    if (loop_ != nullptr) std::exchange(loop_, nullptr)->Close();
  }

 private:
  template <typename Token>
  auto OneSided(bool is_read, const Buffer& local, const RemoteBuffer& remote, uint64_t offset_bytes, Token&& token) {
    return boost::asio::async_initiate<Token, void(absl::Status)>(
        [loop = loop_, is_read, local = &local, remote, offset_bytes](auto handler) {
          loop->OneSided(is_read, *local, remote, offset_bytes, std::nullopt,
                         asio_detail::Handler<absl::Status>(std::move(handler), loop->executor()));
        },
        token);
  }

  std::shared_ptr<asio_detail::EndpointLoop> loop_;
};

namespace asio_detail {

class ListenerLoop : public std::enable_shared_from_this<ListenerLoop> {
 public:
  ListenerLoop(asio::any_io_executor executor, Listener listener)
      : executor_(std::move(executor)), listener_(std::move(listener)), readiness_(executor_) {}

  const asio::any_io_executor& executor() const { return executor_; }
  Listener& listener() { return listener_; }
  void Accept(Handler<absl::StatusOr<AsioEndpoint>> handler) {
    accepts_.push_back(std::move(handler));
    Run();
  }
  void Close() {
    closed_ = true;
    readiness_.Close();
    Run();
  }

 private:
  void Run() {
    while (!accepts_.empty()) {
      absl::StatusOr<std::optional<Endpoint>> endpoint = absl::CancelledError("the listener was closed");
      if (!closed_) endpoint = listener_.TryAccept();
      if (endpoint.ok() && !endpoint->has_value()) break;
      Handler<absl::StatusOr<AsioEndpoint>> handler = std::move(accepts_.front());
      accepts_.pop_front();
      if (endpoint.ok()) {
        handler.Complete(AsioEndpoint(executor_, std::move(**endpoint)));
      } else {
        handler.Complete(endpoint.status());
      }
    }
    if (accepts_.empty() || waiting_) return;
    waiting_ = true;
    readiness_.Assign(listener_.fd());  // another one after the daemon had to be found again
    readiness_.Wait([self = shared_from_this()](const boost::system::error_code&) {
      self->waiting_ = false;
      self->Run();
    });
  }

  const asio::any_io_executor executor_;
  Listener listener_;
  Readiness readiness_;
  bool waiting_ = false;
  bool closed_ = false;
  std::deque<Handler<absl::StatusOr<AsioEndpoint>>> accepts_;
};

class ConnectLoop : public std::enable_shared_from_this<ConnectLoop> {
 public:
  ConnectLoop(asio::any_io_executor executor, Connector connector, Handler<absl::StatusOr<AsioEndpoint>> handler)
      : executor_(std::move(executor)),
        connector_(std::move(connector)),
        handler_(std::move(handler)),
        readiness_(executor_),
        timer_(executor_) {}

  void Start() {
    readiness_.Assign(connector_.fd());
    timer_.expires_after(absl::ToChronoMilliseconds(connector_.time_left()) + std::chrono::milliseconds(1));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->readiness_.Close();  // ends the wait; Try says that the time is over
    });
    Run();
  }

 private:
  void Run() {
    absl::StatusOr<std::optional<Endpoint>> endpoint = connector_.Try();
    if (endpoint.ok() && !endpoint->has_value()) {
      readiness_.Wait([self = shared_from_this()](const boost::system::error_code&) { self->Run(); });
      return;
    }
    timer_.cancel();
    if (endpoint.ok()) {
      handler_.Complete(AsioEndpoint(executor_, std::move(**endpoint)));
    } else {
      handler_.Complete(endpoint.status());
    }
  }

  const asio::any_io_executor executor_;
  Connector connector_;
  Handler<absl::StatusOr<AsioEndpoint>> handler_;
  Readiness readiness_;
  asio::steady_timer timer_;
};

}  // namespace asio_detail

// A Listener in an event loop. Move-only. Destroying it stops listening; accepts that wait complete with Cancelled.
class AsioListener {
 public:
  using executor_type = boost::asio::any_io_executor;

  AsioListener(executor_type executor, Listener listener)
      : loop_(std::make_shared<asio_detail::ListenerLoop>(std::move(executor), std::move(listener))) {}
  AsioListener(AsioListener&&) noexcept = default;
  AsioListener& operator=(AsioListener&& other) noexcept {
    Close();
    loop_ = std::move(other.loop_);
    return *this;
  }
  ~AsioListener() { Close(); }

  executor_type get_executor() const { return loop_->executor(); }
  Listener& listener() { return loop_->listener(); }

  // The next connection. Signature: void(absl::StatusOr<AsioEndpoint>). Errors: as Listener::Accept.
  template <typename Token>
  auto async_accept(Token&& token) {
    return boost::asio::async_initiate<Token, void(absl::StatusOr<AsioEndpoint>)>(
        [loop = loop_](auto handler) {
          loop->Accept(asio_detail::Handler<absl::StatusOr<AsioEndpoint>>(std::move(handler), loop->executor()));
        },
        token);
  }

  void Close() {
    if (loop_ != nullptr) std::exchange(loop_, nullptr)->Close();
  }

 private:
  std::shared_ptr<asio_detail::ListenerLoop> loop_;
};

// Connects to `peer`. Signature: void(absl::StatusOr<AsioEndpoint>). Errors: as Endpoint::Connect.
template <typename Token>
auto async_connect(boost::asio::any_io_executor executor, const Client& client, const Address& peer,
                   EndpointOptions options, Token&& token) {
  return boost::asio::async_initiate<Token, void(absl::StatusOr<AsioEndpoint>)>(
      [executor, client, peer, options = std::move(options)](auto handler) {
        asio_detail::Handler<absl::StatusOr<AsioEndpoint>> erased(std::move(handler), executor);
        absl::StatusOr<Connector> connector = Connector::Start(client, peer, options);
        if (!connector.ok()) {
          erased.Complete(connector.status());
          return;
        }
        std::make_shared<asio_detail::ConnectLoop>(executor, std::move(connector).value(), std::move(erased))->Start();
      },
      token);
}

}  // namespace rdmad
