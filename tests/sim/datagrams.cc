#include "tests/sim/datagrams.h"

#include <algorithm>
#include <array>

#include "daemon/base/check.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/wire/grh.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::sim {

using device::PostResult;
using device::QpResult;
using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;
using enum device::QpAttrMask;

Datagrams::Datagrams(const std::vector<Place>& places, uint32_t first_qpn, uint32_t copies,
                     bool naughty, Random& random, Verdict& verdict, TimeNs now)
    : copies_(copies), naughty_(naughty), random_(random), verdict_(verdict) {
  for (size_t i = 0; i < places.size(); ++i) {
    Member& member = *members_.emplace_back(std::make_unique<Member>(*this, i, random));
    member.place = places[i];
    auto mr = soft::SoftMr::Create(*member.place.transport, member.pd,
                                   {.host_addr = member.arena.at(0),
                                    .length_bytes = member.arena.size(),
                                    .iova = kIova,
                                    .access = device::kAccessLocalWrite});
    RD_CHECK(mr.ok());
    member.mr = std::move(*mr);
    member.mr->Activate(now);
    const auto source = [address = member.place.address](uint32_t, soft::SourceAddress* out) {
      out->address = address;
      return true;
    };
    for (const Place& to : places) {
      device::AddressVector av;
      av.dest = to.address;
      auto handle = soft::SoftAh::Create(member.pd, av, source);
      RD_CHECK(handle.ok());
      member.handles.push_back(std::move(*handle));
    }
    soft::SoftQpInit init;
    init.qpn = first_qpn + static_cast<uint32_t>(i);
    init.pd = &member.pd;
    init.init.type = device::QpType::kUd;
    init.init.send_cq = &member.send_cq;
    init.init.recv_cq = &member.recv_cq;
    init.cap = {kDepth, kDepth, kMaxSge, kMaxSge, 0};
    init.source = source;
    auto qp = soft::UdQp::Create(*member.place.transport, init);
    RD_CHECK(qp.ok());
    member.qp = std::move(*qp);
    member.qp->Activate(now);
    Start(member, now);
  }
}

Datagrams::~Datagrams() {
  for (auto& member : members_) {
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
  message.to = random_.Below(members_.size());
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
  wr.remote_qpn = members_[message.to]->qp->qpn();
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
  if (!member.arena.HasCell()) return;
  Receive receive;
  receive.cell = member.arena.TakeCell();
  receive.pieces =
      member.arena.Scatter(receive.cell, kMaxBytes + wire::kGrhBytes, kMaxSge, random_);
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

void Datagrams::OnCompletion(Member& member, const Wc& wc, bool is_send) {
  ++completions_;
  verdict_.Mix(wc.wr_id << 16 | 0x200 | static_cast<uint64_t>(wc.status));
  verdict_.Trace("  ud ", member.index, is_send ? " send " : " receive ", wc.wr_id, " status ",
                 static_cast<int>(wc.status));
  if (wc.qpn != member.qp->qpn()) Blame(member, "completion for qpn ", wc.qpn);
  if (is_send) {
    OnSent(member, wc);
  } else {
    OnReceived(member, wc);
  }
}

void Datagrams::OnSent(Member& member, const Wc& wc) {
  if (wc.wr_id < member.settled_sends || wc.wr_id >= member.sends.size()) {
    return Blame(member, "send ", wc.wr_id, " completes out of order or twice");
  }
  while (member.settled_sends < wc.wr_id) {
    const Send& silent = member.sends[member.settled_sends];
    if (silent.signaled || silent.bad || member.send_failed) {
      return Blame(member, "send ", member.settled_sends, " has no completion");
    }
    ++member.settled_sends;
  }
  const Send& send = member.sends[member.settled_sends++];
  if (wc.wqe_count != wc.wr_id + 1) Blame(member, "send ", wc.wr_id, " counts ", wc.wqe_count);
  const QpState state = member.qp->Query().state;
  switch (wc.status) {
    case WcStatus::kSuccess:
      if (send.bad || member.send_failed) Blame(member, "send ", wc.wr_id, " succeeds");
      break;
    case WcStatus::kWrFlushErr:
      if (state != QpState::kErr && state != QpState::kSqe)
        Blame(member, "flushed without a cause");
      break;
    default:
      if (!send.bad || wc.status != WcStatus::kLocProtErr || member.send_failed) {
        Blame(member, "send ", wc.wr_id, " has status ", static_cast<int>(wc.status));
      }
      member.send_failed = true;
  }
}

void Datagrams::OnReceived(Member& member, const Wc& wc) {
  if (wc.wr_id != member.settled_receives || wc.wr_id >= member.receives.size()) {
    return Blame(member, "receive ", wc.wr_id, " completes out of order or twice");
  }
  const Receive& receive = member.receives[member.settled_receives++];
  member.arena.ReturnCell(receive.cell);
  if (wc.status == WcStatus::kWrFlushErr) {
    if (member.qp->Query().state != QpState::kErr) Blame(member, "a receive is flushed");
    return;
  }
  if (wc.status != WcStatus::kSuccess || wc.opcode != WcOpcode::kRecv ||
      (wc.flags & shm::kCqeGrh) == 0 || wc.byte_len < wire::kGrhBytes ||
      wc.byte_len > wire::kGrhBytes + kMaxBytes) {
    return Blame(member, "receive ", wc.wr_id, " has status ", static_cast<int>(wc.status),
                 " flags ", static_cast<int>(wc.flags), " length ", wc.byte_len);
  }
  std::vector<std::byte> got = member.arena.Read(receive.pieces);
  got.resize(wc.byte_len);
  const std::span<const std::byte> data = std::span(got).subspan(wire::kGrhBytes);
  const bool has_imm = (wc.flags & shm::kCqeWithImm) != 0;
  Message* found = nullptr;
  for (auto it = messages_.rbegin(); it != messages_.rend() && found == nullptr; ++it) {
    if (it->to != member.index || !it->good_qkey || it->arrivals >= copies_) continue;
    if (members_[it->from]->qp->qpn() != wc.src_qpn) continue;
    if (it->has_imm != has_imm || (has_imm && it->imm_be != wc.imm_be)) continue;
    if (it->solicited != wc.solicited || !std::ranges::equal(it->content, data)) continue;
    found = &*it;
  }
  if (found == nullptr) {
    return Blame(member, "receive ", wc.wr_id, " holds what nobody sent, or too often");
  }
  ++found->arrivals;
  ++received_;
  const IpAddress& from = members_[found->from]->place.address;
  if (from.is_v4()) {
    // The IPv4 header lies in the second half; its source is at 12.
    const std::array<uint8_t, 16>& gid = from.gid();
    for (size_t i = 0; i < 4; ++i) {
      if (got[20 + 12 + i] != std::byte{gid[12 + i]}) Blame(member, "the GRH names another sender");
    }
  }
  member.arena.Accept(receive.pieces, wc.byte_len);
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
