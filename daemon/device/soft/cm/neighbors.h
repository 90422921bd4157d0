// Whether a peer's next hop answers on its link: what makes address resolution of a dead host fail
// in time.
#pragma once

#include <cstdint>

#include "daemon/base/ip_address.h"

namespace rdmad::soft {

enum class NeighborState : uint8_t {
  kReachable,  // its link-layer address is known, or none is needed
  kUnknown,    // the kernel does not know it (yet)
  kFailed,     // the kernel asked and got no answer
};

// Thread: control. Owner: whoever made it; it outlives the connection manager.
class Neighbors {
 public:
  virtual ~Neighbors() = default;
  // Never blocks and sends nothing.
  virtual NeighborState Query(const IpAddress& peer) = 0;
  // Makes the kernel look for the peer if it is not looking already.
  virtual void Solicit(const IpAddress& local, const IpAddress& peer) = 0;
};

}  // namespace rdmad::soft
