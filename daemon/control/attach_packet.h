// One packet on the attach socket, with descriptors: the system calls behind attach.proto.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace rdmad::control {

inline constexpr size_t kMaxAttachPacketBytes = 4096;
inline constexpr size_t kMaxAttachDescriptors = 4;

// Sends `bytes` and copies of `descriptors` (at most kMaxAttachDescriptors) as one packet. Never
// waits. Errors: ResourceExhausted (the peer does not read, or too many descriptors are in flight);
// Unavailable (hung up).
absl::Status SendPacket(int socket, const std::string& bytes, std::span<const int> descriptors);

enum class ReceiveResult : uint8_t {
  kPacket,   // whole
  kNothing,  // none there now
  kHungUp,
  kTooLong,      // over kMaxAttachPacketBytes; the rest is lost
  kDescriptors,  // it carried descriptors, which were not taken
};

// Receives one packet. Clients send no descriptors: the kernel drops them, for no room is offered.
ReceiveResult ReceivePacket(int socket, std::string* bytes);

}  // namespace rdmad::control
