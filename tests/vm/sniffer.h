// The RoCE packets on the kernel's end of the link, seen from outside of both stacks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::testing {

struct SeenPacket {
  bool from_kernel = false;
  // Of the IP header; without ECN. IPv4 has no flow label.
  uint8_t traffic_class = 0;
  uint32_t flow_label = 0;
  uint8_t hop_limit = 0;
  std::vector<uint8_t> roce;  // from the BTH on

  uint8_t opcode() const { return roce[0]; }
  // The reason, when it is a REJ of the connection manager's.
  std::optional<int> RejReason() const;
};

class Sniffer {
 public:
  // Sees what comes from now on, within the bounds of a socket's buffer.
  Sniffer();

  // The first that is wanted; what comes before it is gone.
  std::optional<SeenPacket> WaitFor(const std::function<bool(const SeenPacket&)>& wanted, absl::Duration patience);

 private:
  UniqueFd fd_;
};

}  // namespace rdmad::testing
