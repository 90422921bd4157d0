// What a session asks of the control room: the event loop, a place for slow work, and its own end.
//
// Nothing here is Asio or gRPC, so a session runs in a test without a loop. Thread: control.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/rdmad/v1/attach.pb.h"

namespace rdmad::session {

class Session;

// Watches a descriptor until it is destroyed.
class FdWatch {
 public:
  virtual ~FdWatch() = default;
};

class SessionHost {
 public:
  virtual ~SessionHost() = default;

  // Calls `ready` each time `fd` can be written, until the watch is destroyed (which `ready` may
  // do).
  virtual std::unique_ptr<FdWatch> WatchWritable(int fd, std::function<void()> ready) = 0;

  // Runs `work` on another thread, then `done` on this one. For what takes long: zeroing a large
  // pool, and giving it back.
  virtual void RunSlowly(std::function<void()> work, std::function<void()> done) = 0;

  // The session must end, because of what its client did. Calls Session::Close() later, never from
  // inside this call.
  virtual void EndSession(Session& session, const std::string& reason) = 0;
};

// How descriptors reach the client. Implemented by the attach connection.
class DescriptorSender {
 public:
  virtual ~DescriptorSender() = default;
  // Sends a copy of `fd`, which stays the caller's. Never waits.
  // Errors: ResourceExhausted (the client does not read its attach socket, or too many descriptors
  // are in flight); Unavailable (it has hung up).
  virtual absl::Status SendDescriptor(uint64_t tag, v1::DescriptorKind kind, int fd) = 0;
};

}  // namespace rdmad::session
