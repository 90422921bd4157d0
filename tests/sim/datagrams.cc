#include "tests/sim/datagrams.h"

#include "daemon/base/check.h"
#include "daemon/device/soft/soft_qp.h"

namespace rdmad::sim {

using device::PostResult;
using device::QpResult;
using device::QpState;
using enum device::QpAttrMask;

Datagrams::Datagrams(const std::vector<Place>& places, soft::FakeNetwork& network,
                     uint32_t first_qpn, uint32_t copies, bool naughty, Random& random,
                     Verdict& verdict)
    : network_(network), copies_(copies), naughty_(naughty), random_(random), verdict_(verdict) {
  MakeGroups(places);
  for (size_t i = 0; i < places.size(); ++i) {
    members_.push_back(std::make_unique<Member>(*this, i, random));
    Make(*members_.back(), places[i], first_qpn + static_cast<uint32_t>(i), network.now());
  }
  std::vector<IpAddress> destinations;
  for (const Place& place : places) destinations.push_back(place.address);
  for (const Group& group : groups_) destinations.push_back(group.address);
  for (auto& member : members_) {
    for (const IpAddress& dest : destinations) {
      device::AddressVector av;
      av.dest = dest;
      auto handle = soft::SoftAh::Create(
          member->pd, av, [address = member->place.address](uint32_t, soft::SourceAddress* out) {
            out->address = address;
            return true;
          });
      RD_CHECK(handle.ok());
      member->handles.push_back(std::move(*handle));
    }
  }
}

void Datagrams::Make(Member& member, const Place& place, uint32_t qpn, TimeNs now) {
  member.place = place;
  auto mr = soft::SoftMr::Create(*place.transport, member.pd,
                                 {.host_addr = member.arena.at(0),
                                  .length_bytes = member.arena.size(),
                                  .iova = kIova,
                                  .access = device::kAccessLocalWrite});
  RD_CHECK(mr.ok());
  member.mr = std::move(*mr);
  member.mr->Activate(now);
  soft::SoftQpInit init;
  init.qpn = qpn;
  init.pd = &member.pd;
  init.init.type = device::QpType::kUd;
  init.init.send_cq = &member.send_cq;
  init.init.recv_cq = &member.recv_cq;
  if (place.shared != nullptr) {
    init.init.srq = place.shared->srq();
    place.shared->AddUser();
  }
  init.cap = {kDepth, kDepth, kMaxSge, kMaxSge, 0};
  init.source = [address = place.address](uint32_t, soft::SourceAddress* out) {
    out->address = address;
    return true;
  };
  auto qp = soft::UdQp::Create(*place.transport, init);
  RD_CHECK(qp.ok());
  member.qp = std::move(*qp);
  member.qp->Activate(now);
  Start(member, now);
}

Datagrams::~Datagrams() {
  for (auto& member : members_) {
    LeaveAll(*member);
    member->qp->Deactivate(0);
    member->mr->Deactivate(0);
  }
}

void Datagrams::Start(Member& member, TimeNs now) {
  device::QpAttr attr;
  attr.qkey = kQkey;
  const struct {
    QpState state;
    uint32_t mask;
  } moves[] = {{QpState::kReset, 0},
               {QpState::kInit, kQpAttrPkeyIndex | kQpAttrPort | kQpAttrQkey},
               {QpState::kRtr, 0},
               {QpState::kRts, kQpAttrSqPsn}};
  for (const auto& move : moves) {
    attr.state = move.state;
    attr.mask = move.mask | kQpAttrState;
    if (member.qp->Modify(attr, now) != QpResult::kOk) Blame(member, "a move was refused");
  }
  member.sends.clear();
  member.receives.clear();
  member.settled_sends = member.settled_receives = 0;
  member.send_failed = false;
}

// A send has failed: the sends behind it were flushed, and the application goes on.
void Datagrams::Recover(Member& member, TimeNs now) {
  device::QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kRts;
  if (member.qp->Modify(attr, now) != QpResult::kOk) Blame(member, "from sqe to rts refused");
  member.send_failed = false;
}

void Datagrams::Stop(Member& member, TimeNs now) {
  device::QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = QpState::kErr;
  if (member.qp->Modify(attr, now) != QpResult::kOk) Blame(member, "to error refused");
  // Unsignaled sends that were done have no completion; flushed ones have one each.
  while (member.settled_sends < member.sends.size() &&
         !member.sends[member.settled_sends].signaled) {
    ++member.settled_sends;
  }
  if (member.settled_sends < member.sends.size() ||
      member.settled_receives < member.receives.size()) {
    Blame(member, "not all was flushed");
  }
}

void Datagrams::Act(TimeNs now) {
  Member& member = *members_[random_.Below(members_.size())];
  const QpState state = member.qp->Query().state;
  if (state == QpState::kSqe && random_.Chance(0.5)) Recover(member, now);
  if (random_.Chance(0.02)) {
    Stop(member, now);
    Start(member, now);
  }
  if (random_.Chance(0.2)) JoinOrLeave(member);
  for (uint32_t i = random_.Below(5); i > 0; --i) {
    if (random_.Chance(0.5)) {
      PostSend(member, now);
    } else {
      PostReceive(member, now);
    }
  }
}

void Datagrams::PostSend(Member& member, TimeNs now) {
  Message message{};
  message.from = member.index;
  message.to = random_.Below(members_.size() + kGroups);
  message.arrivals.resize(members_.size());
  message.good_qkey = random_.Chance(0.9);
  message.has_imm = random_.Chance(0.5);
  message.solicited = random_.Chance(0.3);
  message.imm_be = static_cast<uint32_t>(random_.Next());
  const uint32_t bytes = random_.Pick({0u, 1u, 255u, 256u, kMaxBytes, random_.Below(kMaxBytes)});
  const std::vector<Piece> pieces = member.arena.Gather(bytes, kMaxSge, random_);
  message.content = member.arena.Read(pieces);
  const bool bad = naughty_ && bytes > 0 && random_.Chance(0.02);
  std::vector<device::Sge> sges;
  for (const Piece& piece : pieces) {
    const uint32_t key = bad ? 0xdead00 : member.mr->lkey();
    sges.push_back({kIova + piece.offset, piece.bytes, key});
  }
  device::SendWr wr{};
  wr.wr_id = member.sends.size();
  wr.opcode = message.has_imm ? device::WrOpcode::kSendWithImm : device::WrOpcode::kSend;
  const bool signaled = random_.Chance(0.6);
  wr.flags = static_cast<uint8_t>((signaled ? shm::kWorkSignaled : 0) |
                                  (message.solicited ? shm::kWorkSolicited : 0));
  wr.sges = sges;
  wr.imm_be = message.imm_be;
  wr.ah = member.handles[message.to].get();
  const bool to_group = message.to >= members_.size();
  wr.remote_qpn = to_group ? wire::kMulticastQpn.value() : members_[message.to]->qp->qpn();
  wr.remote_qkey = message.good_qkey ? kQkey : kQkey + 1;
  member.sends.push_back({messages_.size(), signaled, bad});
  messages_.push_back(std::move(message));
  const size_t open = member.sends.size() - 1 - member.settled_sends;
  const PostResult result = member.qp->PostSend(wr, now);
  if (result == PostResult::kOk) return;
  member.sends.pop_back();
  messages_.pop_back();
  if (result != PostResult::kQueueFull || open < kDepth) {
    Blame(member, "post send refused: ", static_cast<int>(result));
  }
}

void Datagrams::PostReceive(Member& member, TimeNs now) {
  if (member.place.shared != nullptr) {
    (void)member.place.shared->Post(now);
    return;
  }
  if (!member.arena.HasCell()) return;
  Receive receive;
  receive.cell = member.arena.TakeCell();
  receive.pieces = member.arena.Scatter(receive.cell, kReceiveBytes, kMaxSge, random_);
  std::vector<device::Sge> sges;
  for (const Piece& piece : receive.pieces) {
    sges.push_back({kIova + piece.offset, piece.bytes, member.mr->lkey()});
  }
  const uint32_t cell = receive.cell;
  member.receives.push_back(std::move(receive));
  const size_t open = member.receives.size() - 1 - member.settled_receives;
  const PostResult result =
      member.qp->PostRecv({.wr_id = member.receives.size() - 1, .sges = sges}, now);
  if (result == PostResult::kOk) return;
  member.receives.pop_back();
  member.arena.ReturnCell(cell);
  if (result != PostResult::kQueueFull || open < kDepth) {
    Blame(member, "post receive refused: ", static_cast<int>(result));
  }
}

void Datagrams::SettleSilent(Member& member) {
  const QpState state = member.qp->Query().state;
  if (state != QpState::kRts) return;
  while (member.settled_sends < member.sends.size() &&
         !member.sends[member.settled_sends].signaled && !member.sends[member.settled_sends].bad) {
    ++member.settled_sends;
  }
}

// Only after the transports have come to rest: what has no completion then is done in silence.
bool Datagrams::IsDone() {
  bool done = true;
  for (auto& member : members_) {
    SettleSilent(*member);
    done &= member->settled_sends == member->sends.size();
  }
  return done;
}

void Datagrams::Close(TimeNs now) {
  for (auto& member : members_) Stop(*member, now);
  for (auto& member : members_) {
    const size_t at = member->arena.FirstDifference();
    if (at != member->arena.size()) Blame(*member, "byte ", at, " has changed and was not named");
  }
}

}  // namespace rdmad::sim
