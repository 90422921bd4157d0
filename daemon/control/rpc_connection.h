// One client's connection to rdmad.sock: its socket, and the calls that come over it.
//
// Reads only what it can deal with: nothing while the client leaves answers in the socket, has
// calls waiting or GrpcProtocol::kMaxCalls under way. And it does one thing a turn of the event
// loop, reads a piece or begins a call, so that connections take turns.
//
// Thread: control. Owner: RpcDoor, and whatever is under way.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/base/unique_fd.h"
#include "daemon/control/grpc_protocol.h"

namespace rdmad::control {

class RpcConnection final : public std::enable_shared_from_this<RpcConnection> {
 public:
  // To be called once, at any time: also when the connection has ended.
  using Respond = std::function<void(const absl::Status& status, std::string reply)>;
  // May answer at once. Not called any more after Close().
  using OnCall = std::function<void(const GrpcProtocol::Call& call, Respond respond)>;
  // The client has hung up, or was dropped for what it sent. Not after Close().
  using OnEnd = std::function<void()>;

  // `socket` is a connected, non-blocking stream socket.
  RpcConnection(boost::asio::io_context& loop, UniqueFd socket, OnCall on_call, OnEnd on_end);
  RpcConnection(const RpcConnection&) = delete;
  RpcConnection& operator=(const RpcConnection&) = delete;

  void Start();

  // Hangs up, and says so as far as the socket takes it at once.
  void Close();

 private:
  void Receive();
  // In a turn of its own.
  void BeginNextCall();
  // Sends what there is, and waits for what comes next.
  void Continue();
  // False: the socket takes no more for now, or none any more.
  bool Send();
  void WaitToRead();
  void WaitToWrite();
  void End();

  boost::asio::posix::stream_descriptor socket_;
  const OnCall on_call_;
  const OnEnd on_end_;
  GrpcProtocol protocol_;
  std::string unsent_;
  size_t sent_ = 0;  // of unsent_
  bool reading_ = false;
  bool writing_ = false;
  bool calling_ = false;  // BeginNextCall() is to run
  bool broken_ = false;   // nothing more is to be received
};

}  // namespace rdmad::control
