// The datagram QPs of one transport that are in one multicast group of one interface.
//
// A packet to the group is delivered to each of them, as if it had been sent to it alone: its QKey,
// its receives, its completions. That includes the sender, if it is a member, as on an HCA that is
// not told to block its own (IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK is the kernel's alone) and on
// rxe. A QP that was added twice gets one copy.
//
// Thread: engine, but for construction. Owner: a MulticastPort.
#pragma once

#include "daemon/device/soft/packet_io.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class UdQp;
struct TransportCounters;

// A QP's place in a group; it is in one at most and outlives its stay there.
class MulticastMember {
 public:
  explicit MulticastMember(UdQp& qp) noexcept : qp_(qp) {}
  MulticastMember(const MulticastMember&) = delete;
  MulticastMember& operator=(const MulticastMember&) = delete;

 private:
  friend class MulticastGroup;
  UdQp& qp_;
  MulticastMember* next_ = nullptr;
  bool again_ = false;  // its QP is in the group by another member, too
};

class MulticastGroup {
 public:
  void Add(MulticastMember& member) noexcept;
  void Remove(MulticastMember& member) noexcept;
  bool empty() const noexcept { return first_ == nullptr; }
  // `flow.local` is the group's address.
  void Deliver(const Flow& flow, const wire::PacketView& packet, TransportCounters& counters,
               TimeNs now) noexcept;

 private:
  MulticastMember* Find(const UdQp& qp) noexcept;

  MulticastMember* first_ = nullptr;
};

}  // namespace rdmad::soft
