#include "daemon/device/soft/multicast_group.h"

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/device/soft/transport_counters.h"
#include "daemon/device/soft/ud_qp.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {

MulticastMember* MulticastGroup::Find(const UdQp& qp) noexcept {
  for (MulticastMember* member = first_; member != nullptr; member = member->next_) {
    if (&member->qp_ == &qp) return member;
  }
  return nullptr;
}

void MulticastGroup::Add(MulticastMember& member) noexcept {
  member.again_ = Find(member.qp_) != nullptr;
  if (!member.again_) ++size_;
  member.next_ = first_;
  first_ = &member;
}

void MulticastGroup::Remove(MulticastMember& member) noexcept {
  MulticastMember** link = &first_;
  while (*link != nullptr && *link != &member) link = &(*link)->next_;
  RD_CHECK(*link == &member, "only who is in a group leaves it");
  *link = member.next_;
  if (next_ == &member) next_ = member.next_;
  if (member.again_) return;
  --size_;
  // Another one takes its place.
  if (MulticastMember* const other = Find(member.qp_)) {
    other->again_ = false;
    ++size_;
  }
}

void MulticastGroup::Deliver(const Flow& flow, const wire::PacketView& packet,
                             TransportCounters& counters, TimeNs now) noexcept {
  MulticastMember* member = std::exchange(next_, nullptr);
  if (member == nullptr) {  // a new one
    Count(counters.rx_packets);
    Count(counters.rx_payload_bytes, packet.payload.size());
    if (packet.dest_qpn != wire::kMulticastQpn) return Count(counters.drop_unknown_qp);
    Count(counters.rx_multicast_packets);
    member = first_;
  }
  for (; member != nullptr; member = member->next_) {
    if (member->again_) continue;
    if (left_ == 0) {
      next_ = member;
      return Hold(flow, packet);
    }
    --left_;
    member->qp_.OnPacket(flow, packet, now);
  }
}

void MulticastGroup::Hold(const Flow& flow, const wire::PacketView& packet) noexcept {
  if (&packet == &held_) return;
  held_flow_ = flow;
  held_ = packet;
  std::copy(packet.payload.begin(), packet.payload.end(), held_payload_.begin());
  held_.payload = std::span<const uint8_t>(held_payload_).first(packet.payload.size());
  held_.icrc_input = {};
}

}  // namespace rdmad::soft
