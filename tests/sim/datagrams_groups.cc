// The multicast groups of the datagram QPs.
#include <algorithm>

#include "daemon/device/soft/transport_counters.h"
#include "tests/sim/datagrams.h"

namespace rdmad::sim {

void Datagrams::MakeGroups(const std::vector<Place>& places) {
  for (size_t i = 0; i < kGroups; ++i) {
    Group& group = groups_[i];
    const auto number = static_cast<uint8_t>(i + 1);
    group.address =
        places.front().address.is_v4()
            ? IpAddress::FromV4(239, 1, 1, number)
            : IpAddress::FromV6({0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number});
    for (const Place& place : places) {
      if (!group.hosts.try_emplace(place.transport).second) continue;
      network_.AttachGroup(group.address,
                           [this, i, transport = place.transport](
                               const soft::Flow& flow, const wire::PacketView& packet, TimeNs now) {
                             OnGroupPacket(i, *transport, flow, packet, now);
                           });
    }
  }
}

void Datagrams::JoinOrLeave(Member& member) {
  const size_t which = random_.Below(kGroups);
  soft::MulticastGroup& group = groups_[which].hosts[member.place.transport];
  auto& membership = member.memberships[which];
  verdict_.Trace("  ud ", member.index, membership == nullptr ? " joins " : " leaves ", which);
  if (membership == nullptr) {
    membership = std::make_unique<soft::MulticastMember>(*member.qp);
    group.Add(*membership);
  } else {
    group.Remove(*membership);
    membership.reset();
  }
}

void Datagrams::LeaveAll(Member& member) {
  for (size_t i = 0; i < kGroups; ++i) {
    if (member.memberships[i] == nullptr) continue;
    groups_[i].hosts[member.place.transport].Remove(*member.memberships[i]);
    member.memberships[i].reset();
  }
}

bool Datagrams::IsFor(const Message& message, const Member& member) const {
  if (message.to < members_.size()) return message.to == member.index;
  return member.memberships[message.to - members_.size()] != nullptr;
}

// What the members at a host had so far: receives that completed, and drops.
uint64_t Datagrams::Outcomes(soft::Transport& transport) const {
  const soft::TransportCounters& counters = transport.counters();
  uint64_t sum = counters.drop_no_receive + counters.drop_receive_too_short +
                 counters.drop_bad_qkey + counters.drop_bad_state;
  for (const auto& member : members_) {
    if (member->place.transport == &transport) sum += member->received;
  }
  return sum;
}

void Datagrams::OnGroupPacket(size_t which, soft::Transport& transport, const soft::Flow& flow,
                              const wire::PacketView& packet, TimeNs now) {
  const auto expected = std::count_if(members_.begin(), members_.end(), [&](const auto& member) {
    return member->place.transport == &transport && member->memberships[which] != nullptr;
  });
  ++multicasts_;
  const uint64_t before = Outcomes(transport);
  soft::MulticastGroup& group = groups_[which].hosts[&transport];
  group.BeginTurn();
  transport.OnMulticast(group, flow, packet, now);
  const uint64_t outcomes = Outcomes(transport) - before;
  if (outcomes != static_cast<uint64_t>(expected)) {
    verdict_.Fail("group ", which, ": ", outcomes, " outcomes for ", expected, " members");
  }
}

}  // namespace rdmad::sim
