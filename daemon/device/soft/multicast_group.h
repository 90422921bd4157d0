// The datagram QPs of one transport that are in one multicast group of one interface.
//
// A packet to the group is delivered to each of them, as if it had been sent to it alone: its QKey,
// its receives, its completions. That includes the sender, if it is a member, as on an HCA whose QP
// was made without IBV_QP_CREATE_BLOCK_SELF_MCAST_LB (ibv_create_qp_ex), and on rxe, which has no
// such flag; nor has our API: a receiver knows its own packets by the sender's QPN and GRH. Who only
// wants to send joins as a send-only member (rdma_join_multicast_ex). A QP that was added twice gets
// one copy.
//
// A turn delivers to so many members at most. A packet for more of them is kept, and those behind
// get it in the turns that follow, before anything else is taken from the group's socket.
//
// Thread: engine, but for construction. Owner: a MulticastPort.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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
  static constexpr size_t kDeliveriesPerTurn = 256;

  void Add(MulticastMember& member) noexcept;
  void Remove(MulticastMember& member) noexcept;
  bool empty() const noexcept { return first_ == nullptr; }
  // Members that get a copy of each packet.
  size_t size() const noexcept { return size_; }

  // A new budget.
  void BeginTurn() noexcept { left_ = kDeliveriesPerTurn; }
  // A packet still has members before it: it is to be delivered once more, before any other.
  bool has_held() const noexcept { return next_ != nullptr; }
  const Flow& held_flow() const noexcept { return held_flow_; }
  const wire::PacketView& held() const noexcept { return held_; }
  size_t deliveries_left() const noexcept { return left_; }
  // `flow.local` is the group's address.
  void Deliver(const Flow& flow, const wire::PacketView& packet, TransportCounters& counters,
               TimeNs now) noexcept;

 private:
  MulticastMember* Find(const UdQp& qp) noexcept;

  void Hold(const Flow& flow, const wire::PacketView& packet) noexcept;

  MulticastMember* first_ = nullptr;
  size_t size_ = 0;
  size_t left_ = kDeliveriesPerTurn;
  MulticastMember* next_ = nullptr;  // of the packet that is kept; null: none is
  Flow held_flow_;
  wire::PacketView held_;  // its payload lies in held_payload_
  std::array<uint8_t, wire::kMaxMtuBytes> held_payload_;
};

}  // namespace rdmad::soft
