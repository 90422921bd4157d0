// How the SDK asks the daemon for things: one request, one reply, by a deadline.
#pragma once

#include <google/protobuf/message_lite.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/sdk/deadline.h"

namespace rdmad::sdk {

// Thread: any. Owner: the Session.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  // `path` as in rpc.h. Errors: the daemon's own; Unavailable (no daemon there); DeadlineExceeded.
  virtual absl::Status Call(const char* path, const google::protobuf::MessageLite& request,
                            google::protobuf::MessageLite* reply, Deadline deadline) = 0;
};

// gRPC over the Unix socket `socket_path` (absolute); `token` goes with every call. Connects with the first call.
std::unique_ptr<ControlChannel> ConnectControlChannel(const std::string& socket_path, std::string token);

}  // namespace rdmad::sdk
