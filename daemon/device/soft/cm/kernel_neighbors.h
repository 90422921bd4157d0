// Neighbors by the kernel's ARP and neighbour discovery, without privilege: its tables are read by
// rtnetlink, and an empty UDP datagram to the discard port makes it look.
//
// Where that does not work (no rtnetlink in a sandbox, an old kernel, an interface without
// link-layer addresses) every peer counts as reachable: the connection's own time-out is then what
// notices a dead one. Source: rtnetlink(7), RFC 863.
#pragma once

#include "daemon/base/unique_fd.h"
#include "daemon/device/soft/cm/neighbors.h"

namespace rdmad::soft {

class KernelNeighbors : public Neighbors {
 public:
  // Of the network namespace of the calling thread.
  KernelNeighbors();

  NeighborState Query(const IpAddress& peer) override;
  void Solicit(const IpAddress& local, const IpAddress& peer) override;

 private:
  UniqueFd netlink_;
};

}  // namespace rdmad::soft
