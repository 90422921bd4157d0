// How the datagrams' completions are judged.
#include <algorithm>

#include "proto/shm/completion_queue.h"
#include "tests/sim/datagrams.h"

namespace rdmad::sim {

using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;

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

const std::vector<Piece>* Datagrams::ReceiveFor(Member& member, uint64_t wr_id) {
  if (SharedReceives* const shared = member.place.shared; shared != nullptr) {
    const RecvRecord* const record = shared->Complete(wr_id, &member.last_shared);
    if (record == nullptr) return nullptr;
    shared->Return(wr_id);
    return &record->pieces;
  }
  if (wr_id != member.settled_receives || wr_id >= member.receives.size()) {
    Blame(member, "receive ", wr_id, " completes out of order or twice");
    return nullptr;
  }
  const Receive& receive = member.receives[member.settled_receives++];
  member.arena.ReturnCell(receive.cell);
  return &receive.pieces;
}

void Datagrams::OnReceived(Member& member, const Wc& wc) {
  const std::vector<Piece>* const pieces = ReceiveFor(member, wc.wr_id);
  if (pieces == nullptr) return;
  if (wc.status == WcStatus::kWrFlushErr) {
    if (member.qp->Query().state != QpState::kErr) Blame(member, "a receive is flushed");
    return;
  }
  ++member.received;
  if (wc.status != WcStatus::kSuccess || wc.opcode != WcOpcode::kRecv ||
      (wc.flags & shm::kCqeGrh) == 0 || wc.byte_len < wire::kGrhBytes ||
      wc.byte_len > wire::kGrhBytes + kMaxBytes) {
    return Blame(member, "receive ", wc.wr_id, " has status ", static_cast<int>(wc.status),
                 " flags ", static_cast<int>(wc.flags), " length ", wc.byte_len);
  }
  std::vector<std::byte> got = RecvArena(member).Read(*pieces);
  got.resize(wc.byte_len);
  const std::span<const std::byte> data = std::span(got).subspan(wire::kGrhBytes);
  const bool has_imm = (wc.flags & shm::kCqeWithImm) != 0;
  Message* found = nullptr;
  for (auto it = messages_.rbegin(); it != messages_.rend() && found == nullptr; ++it) {
    if (!IsFor(*it, member) || !it->good_qkey || it->arrivals[member.index] >= copies_) continue;
    if (members_[it->from]->qp->qpn() != wc.src_qpn) continue;
    if (it->has_imm != has_imm || (has_imm && it->imm_be != wc.imm_be)) continue;
    if (it->solicited != wc.solicited || !std::ranges::equal(it->content, data)) continue;
    if (!GrhFits(member, *it, got)) continue;
    found = &*it;
  }
  if (found == nullptr) {
    return Blame(member, "receive ", wc.wr_id, " holds what nobody sent, or too often");
  }
  ++found->arrivals[member.index];
  ++received_;
  RecvArena(member).Accept(*pieces, wc.byte_len);
}

// The IPv4 header lies in the second half: source at 12, destination at 16.
bool Datagrams::GrhFits(const Member& member, const Message& message,
                        const std::vector<std::byte>& got) const {
  const bool to_group = message.to >= members_.size();
  const IpAddress& to =
      to_group ? groups_[message.to - members_.size()].address : member.place.address;
  const IpAddress& from = members_[message.from]->place.address;
  const auto holds = [&got](const IpAddress& address, size_t at) {
    const size_t skip = address.is_v4() ? 12 : 0;
    for (size_t i = skip; i < 16; ++i) {
      if (got[at + i - skip] != std::byte{address.gid()[i]}) return false;
    }
    return true;
  };
  return holds(from, from.is_v4() ? 32 : 8) && holds(to, from.is_v4() ? 36 : 24);
}

}  // namespace rdmad::sim
