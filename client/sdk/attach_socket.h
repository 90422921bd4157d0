// The attach socket (proto/rdmad/v1/attach.proto): makes the session, and later brings descriptors.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/deadline.h"
#include "client/sdk/unique_fd.h"
#include "proto/rdmad/v1/attach.pb.h"

namespace rdmad::sdk {

// The session lives as long as this socket. Thread: any; whoever needs a descriptor reads the socket, under a lock.
class AttachSocket {
 public:
  explicit AttachSocket(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  // The descriptor that the daemon sent for `tag`, which it does before it answers the call that told the tag.
  // Errors: Unavailable (hung up), DeadlineExceeded, Internal (another kind than expected).
  absl::StatusOr<UniqueFd> TakeDescriptor(uint64_t tag, v1::DescriptorKind kind, Deadline deadline);

  // Whether the daemon has hung up. One system call.
  bool HungUp() const noexcept;

 private:
  struct Delivery {
    v1::DescriptorKind kind;
    UniqueFd fd;
  };
  // Reads one delivery into `waiting_`.
  absl::Status ReadDelivery(Deadline deadline);

  const UniqueFd fd_;
  std::mutex mutex_;
  std::map<uint64_t, Delivery> waiting_;
};

// What an attachment begins with.
struct Attachment {
  UniqueFd socket;
  v1::AttachReply reply;
  UniqueFd control_segment;
  UniqueFd engine_page;
  UniqueFd wake_pipe;
  UniqueFd async_channel;
};

// `run_dir` as given by the caller, or where the daemon is looked for without.
std::string ResolveRunDir(const std::string& run_dir);

// Connects to <run_dir>/attach.sock and attaches, waiting for the daemon until `deadline`.
// Errors: as Client::Attach.
absl::StatusOr<Attachment> AttachToDaemon(const std::string& run_dir, const std::string& name, Deadline deadline);

}  // namespace rdmad::sdk
