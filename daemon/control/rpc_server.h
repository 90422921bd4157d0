// The gRPC door: takes connections that others accepted, and calls in bytes, on one thread of its
// own that sleeps unless something comes in.
//
// Two habits of gRPC 1.51 are worked around here. Its listening sockets say nothing of who
// connects, so rdmad accepts by itself (rpc_listener.h) and hands over the descriptors; a call then
// names its connection by that number. And its timer threads and its callback API's pollers wake up
// every second for nothing, so calls are taken from a completion queue, timers are left off (we set
// no deadline, ping nobody and age nothing), and gRPC gets an event engine that sleeps. rpc_quiet.h
// has the details.
//
// Thread: see each method. Owner: Daemon.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::control {

inline constexpr char kTokenMetadataKey[] = "rdmad-token-bin";
inline constexpr int kMaxRequestBytes = 16 * 1024;  // the longest that means anything has some 500

struct RpcCall {
  std::string method;   // "/rdmad.v1.VerbsService/CreateQp"
  std::string token;    // empty: none was sent
  int connection = -1;  // the number that AddConnection() was given; -1 if gRPC does not say
  std::string request;
  // To be called once, from any thread, also after Shutdown() has begun.
  std::function<void(const absl::Status& status, const std::string& reply)> respond;
};

class RpcServer {
 public:
  // Runs on the server's thread; hands the call on and returns.
  using Handler = std::function<void(RpcCall call)>;

  // Errors: Internal (gRPC does not start).
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(Handler handler);
  // As Shutdown().
  virtual ~RpcServer() = default;

  // Serves a connected, non-blocking stream socket. Thread: any one.
  virtual void AddConnection(UniqueFd socket) = 0;

  // Cancels what is under way and joins the thread. Every RpcCall must have been answered before.
  // Thread: any one.
  virtual void Shutdown() = 0;
};

}  // namespace rdmad::control
