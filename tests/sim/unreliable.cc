#include "tests/sim/unreliable.h"

#include <algorithm>

#include "daemon/base/check.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/requester.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::sim {

using device::PostResult;
using device::QpAttr;
using device::QpResult;
using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;
using enum device::QpAttrMask;

namespace {

constexpr uint64_t kIova = 0x7000'0000'0000;
constexpr uint32_t kBadKey = 0xdead00;

}  // namespace

Unreliable::Unreliable(const std::array<Place, 2>& places, uint32_t first_qpn, const Terms& terms,
                       const Weather& weather, Random& random, Verdict& verdict, TimeNs now)
    : terms_(terms), weather_(weather), random_(random), verdict_(verdict) {
  for (size_t i = 0; i < 2; ++i) {
    sides_[i] = std::make_unique<Side>(*this, i, places[i], terms, random);
    Make(*sides_[i], first_qpn + static_cast<uint32_t>(i), now);
  }
  const uint32_t psns[2] = {0xfffff0 + random.Below(16), random.Below(1u << 24)};
  for (size_t i = 0; i < 2; ++i) Connect(*sides_[i], psns[1 - i], psns[i], now);
}

Unreliable::~Unreliable() {
  for (auto& side : sides_) side->qp->Deactivate(0);
  for (auto& side : sides_) {
    side->local_mr->Deactivate(0);
    side->target_mr->Deactivate(0);
  }
}

void Unreliable::Make(Side& side, uint32_t qpn, TimeNs now) {
  const auto make_region = [&](Piece range, uint32_t access) {
    auto mr = soft::SoftMr::Create(*side.place.transport, side.pd,
                                   {.host_addr = side.arena.at(range.offset),
                                    .length_bytes = range.bytes,
                                    .iova = kIova + range.offset,
                                    .access = access});
    RD_CHECK(mr.ok());
    (*mr)->Activate(now);
    return std::move(*mr);
  };
  side.local_mr =
      make_region({0, static_cast<uint32_t>(side.arena.size())}, device::kAccessLocalWrite);
  side.target_mr = make_region(side.arena.exposed(), kFullAccess);
  soft::SoftQpInit init;
  init.qpn = qpn;
  init.pd = &side.pd;
  init.init.type = device::QpType::kUc;
  init.init.send_cq = &side.send_cq;
  init.init.recv_cq = &side.recv_cq;
  if (side.place.shared != nullptr) {
    init.init.srq = side.place.shared->srq();
    side.place.shared->AddUser();
  }
  init.init.signal_all = terms_.signal_all;
  init.cap = {terms_.send_depth, terms_.recv_depth, terms_.max_sge, terms_.max_sge, 0};
  init.source = [address = side.place.address](uint32_t, soft::SourceAddress* out) {
    out->address = address;
    return true;
  };
  auto qp = soft::SoftQp::Create(*side.place.transport, init);
  RD_CHECK(qp.ok());
  side.qp = std::move(*qp);
  side.qp->Activate(now);
}

void Unreliable::Connect(Side& side, uint32_t rq_psn, uint32_t sq_psn, TimeNs now) {
  QpAttr attr;
  attr.access_flags = kFullAccess;
  attr.av.dest = side.peer().place.address;
  attr.path_mtu = terms_.mtu;
  attr.dest_qpn = side.peer().qp->qpn();
  attr.rq_psn = rq_psn;
  attr.sq_psn = sq_psn;
  const struct {
    QpState state;
    uint32_t mask;
  } moves[] = {{QpState::kInit, kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags},
               {QpState::kRtr, kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn},
               {QpState::kRts, kQpAttrSqPsn}};
  for (const auto& move : moves) {
    attr.state = move.state;
    attr.mask = move.mask | kQpAttrState;
    if (side.qp->Modify(attr, now) != QpResult::kOk) Blame(side, "a move was refused");
  }
}

void Unreliable::Move(Side& side, QpState state, TimeNs now) {
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = state;
  if (side.qp->Modify(attr, now) != QpResult::kOk) {
    Blame(side, "to state ", static_cast<int>(state), " refused");
  }
}

void Unreliable::Act(TimeNs now) {
  Side& side = *sides_[random_.Below(2)];
  const QpState state = side.qp->Query().state;
  if (state == QpState::kSqe && random_.Chance(0.5)) {
    side.send_failed = false;
    Move(side, QpState::kRts, now);
  }
  for (uint32_t i = random_.Below(6); i > 0; --i) {
    if (random_.Chance(0.5)) {
      PostSend(side, now);
    } else {
      PostReceive(side, now);
    }
  }
}

void Unreliable::PostSend(Side& side, TimeNs now) {
  if (side.sends.size() > 300) return;
  Message message;
  message.opcode = random_.Pick(
      {WrOpcode::kSend, WrOpcode::kSendWithImm, WrOpcode::kRdmaWrite, WrOpcode::kRdmaWriteWithImm});
  if (random_.Chance(0.6)) message.flags |= shm::kWorkSignaled;
  if (random_.Chance(0.2)) message.flags |= shm::kWorkFence;
  if (random_.Chance(0.3)) message.flags |= shm::kWorkSolicited;
  message.imm_be = static_cast<uint32_t>(random_.Next());
  message.bytes = random_.Below(uint64_t{terms_.max_message_bytes} + 1);
  message.pieces = side.arena.Gather(message.bytes, terms_.max_sge, random_);
  message.content = side.arena.Read(message.pieces);
  const Arena& target = side.peer().arena;
  message.remote_offset =
      target.target_offset() + random_.Below(target.target_bytes() - message.bytes + 1);
  if (terms_.naughty && message.bytes > 0 && random_.Chance(0.03)) {
    message.mischief = random_.Chance(0.5) ? Mischief::kBadLkey : Mischief::kBadRkey;
  }
  std::vector<device::Sge> sges;
  for (const Piece& piece : message.pieces) {
    const bool bad = message.mischief == Mischief::kBadLkey;
    sges.push_back({kIova + piece.offset, piece.bytes, bad ? kBadKey : side.local_mr->lkey()});
  }
  device::SendWr wr{};
  wr.wr_id = side.sends.size();
  wr.opcode = message.opcode;
  wr.flags = message.flags;
  wr.sges = sges;
  wr.imm_be = message.imm_be;
  wr.remote_addr = kIova + message.remote_offset;
  wr.rkey = side.peer().target_mr->rkey();
  if (message.mischief == Mischief::kBadRkey) wr.rkey ^= 1 + random_.Below(255);
  const size_t open = side.sends.size() - side.settled_sends;
  side.sends.push_back(std::move(message));
  const PostResult result = side.qp->PostSend(wr, now);
  if (result == PostResult::kOk) return;
  side.sends.pop_back();
  if (result != PostResult::kQueueFull || open < terms_.send_depth) {
    Blame(side, "post send refused: ", static_cast<int>(result));
  }
}

void Unreliable::PostReceive(Side& side, TimeNs now) {
  if (side.place.shared != nullptr) {
    (void)side.place.shared->Post(now);
    return;
  }
  if (!side.arena.HasCell()) return;
  RecvRecord receive;
  receive.cell = side.arena.TakeCell();
  receive.capacity = terms_.naughty && random_.Chance(0.05)
                         ? random_.Below(uint64_t{terms_.max_message_bytes} + 1)
                         : terms_.max_message_bytes;
  const auto bytes = static_cast<uint32_t>(receive.capacity);
  receive.pieces = side.arena.Scatter(receive.cell, bytes, terms_.max_sge, random_);
  std::vector<device::Sge> sges;
  for (const Piece& piece : receive.pieces) {
    sges.push_back({kIova + piece.offset, piece.bytes, side.local_mr->lkey()});
  }
  const uint32_t cell = receive.cell;
  const size_t open = side.receives.size() - side.settled_receives;
  side.receives.push_back(std::move(receive));
  const PostResult result =
      side.qp->PostRecv({.wr_id = side.receives.size() - 1, .sges = sges}, now);
  if (result == PostResult::kOk) return;
  side.receives.pop_back();
  side.arena.ReturnCell(cell);
  if (result != PostResult::kQueueFull || open < terms_.recv_depth) {
    Blame(side, "post receive refused: ", static_cast<int>(result));
  }
}

void Unreliable::OnSent(Side& side, const Wc& wc) {
  ++completions_;
  verdict_.Mix(wc.wr_id << 16 | 0x300 | static_cast<uint64_t>(wc.status));
  verdict_.Trace("  uc ", side.index, " send ", wc.wr_id, " status ", static_cast<int>(wc.status));
  if (wc.wr_id < side.settled_sends || wc.wr_id >= side.sends.size()) {
    return Blame(side, "send ", wc.wr_id, " completes out of order or twice");
  }
  while (side.settled_sends < wc.wr_id) {
    Message& silent = side.sends[side.settled_sends];
    if ((silent.flags & shm::kWorkSignaled) != 0 || terms_.signal_all || side.send_failed ||
        silent.mischief == Mischief::kBadLkey) {
      return Blame(side, "send ", side.settled_sends, " has no completion");
    }
    silent.done = true;
    ++side.settled_sends;
  }
  Message& message = side.sends[side.settled_sends++];
  if (wc.wqe_count != wc.wr_id + 1) Blame(side, "send ", wc.wr_id, " counts ", wc.wqe_count);
  if (wc.opcode != (message.is_write() ? WcOpcode::kRdmaWrite : WcOpcode::kSend)) {
    Blame(side, "send ", wc.wr_id, " has opcode ", static_cast<int>(wc.opcode));
  }
  const QpState state = side.qp->Query().state;
  if (wc.status == WcStatus::kSuccess) {
    message.done = true;
    if (message.mischief == Mischief::kBadLkey || side.send_failed) {
      Blame(side, "send ", wc.wr_id, " succeeds");
    }
  } else if (wc.status == WcStatus::kWrFlushErr) {
    if (state != QpState::kErr && state != QpState::kSqe) Blame(side, "flushed without a cause");
  } else {
    const bool excused = message.mischief == Mischief::kBadLkey &&
                         wc.status == WcStatus::kLocProtErr && !side.send_failed;
    if (!excused) {
      Blame(side, "send ", wc.wr_id, " has status ", static_cast<int>(wc.status));
    }
    side.send_failed = true;
  }
}

bool Unreliable::Matches(Side& side, const Message& message, const RecvRecord& receive,
                         const Wc& wc) const {
  if (message.opcode == WrOpcode::kRdmaWrite || message.arrivals >= weather_.copies) return false;
  if (message.is_write() != (wc.opcode == WcOpcode::kRecvRdmaWithImm)) return false;
  const bool imm = (wc.flags & shm::kCqeWithImm) != 0;
  if (imm != message.has_imm() || (imm && wc.imm_be != message.imm_be)) return false;
  if (wc.solicited != ((message.flags & shm::kWorkSolicited) != 0)) return false;
  if (wc.byte_len != message.bytes) return false;
  if (message.is_write()) {
    // No other message can have come between its last packet and this.
    return message.mischief != Mischief::kBadRkey &&
           std::equal(message.content.begin(), message.content.end(),
                      side.arena.at(message.remote_offset));
  }
  if (message.bytes > receive.capacity) return false;
  std::vector<std::byte> got = RecvArena(side).Read(receive.pieces);
  got.resize(message.bytes);
  return got == message.content;
}

const RecvRecord* Unreliable::ReceiveFor(Side& side, uint64_t wr_id) {
  if (side.place.shared != nullptr) return side.place.shared->Complete(wr_id, &side.last_shared);
  if (wr_id != side.settled_receives || wr_id >= side.receives.size()) {
    Blame(side, "receive ", wr_id, " completes out of order or twice");
    return nullptr;
  }
  return &side.receives[side.settled_receives++];
}

// A message that came to nothing may have used its memory before.
void Unreliable::SettleReceive(Side& side, uint64_t wr_id) {
  if (side.place.shared != nullptr) {
    side.place.shared->Spoil(wr_id);
    side.place.shared->Return(wr_id);
    return;
  }
  side.arena.Accept(side.receives[wr_id].pieces);
  side.arena.ReturnCell(side.receives[wr_id].cell);
}

void Unreliable::OnReceived(Side& side, const Wc& wc) {
  ++completions_;
  verdict_.Mix(wc.wr_id << 16 | 0x400 | static_cast<uint64_t>(wc.status));
  verdict_.Trace("  uc ", side.index, " receive ", wc.wr_id, " status ",
                 static_cast<int>(wc.status));
  const RecvRecord* const receive = ReceiveFor(side, wc.wr_id);
  if (receive == nullptr) return;
  if (wc.status == WcStatus::kSuccess) {
    auto& messages = side.peer().sends;
    // From where the last one stood on, if the order holds; else the latest that fits.
    size_t found = messages.size();
    // A copy comes right behind its original.
    const size_t from = weather_.in_order && weather_.copies == 1    ? side.last_arrived
                        : weather_.in_order && side.last_arrived > 0 ? side.last_arrived - 1
                                                                     : 0;
    for (size_t i = messages.size(); i-- > from;) {
      if (Matches(side, messages[i], *receive, wc)) found = i;
      if (found == i && !weather_.in_order) break;
    }
    if (found == messages.size()) {
      return Blame(side, "receive ", wc.wr_id, " holds no whole message, or not in its turn");
    }
    ++messages[found].arrivals;
    ++received_;
    side.last_arrived = found + 1;
  } else if (wc.status != WcStatus::kWrFlushErr || side.qp->Query().state != QpState::kErr) {
    Blame(side, "receive ", wc.wr_id, " has status ", static_cast<int>(wc.status));
  }
  SettleReceive(side, wc.wr_id);
}

void Unreliable::SettleSilent(Side& side) {
  if (!side.qp->requester().queue().empty()) return;
  for (; side.settled_sends < side.sends.size(); ++side.settled_sends) {
    Message& silent = side.sends[side.settled_sends];
    if ((silent.flags & shm::kWorkSignaled) != 0 || terms_.signal_all) {
      return Blame(side, "send ", side.settled_sends, " is done without a completion");
    }
    silent.done = true;
  }
}

bool Unreliable::IsDone() {
  bool done = true;
  for (auto& side : sides_) {
    SettleSilent(*side);
    done &= side->settled_sends == side->sends.size();
  }
  return done;
}

// Every byte is what was there, or what some WRITE brings there; with good weather exactly what all
// of them together have left.
void Unreliable::CheckWrites(Side& side) {
  Arena& target = side.peer().arena;
  for (const Message& message : side.sends) {
    if (!message.is_write() || message.mischief != Mischief::kNone) continue;
    // That of WRITEs with immediate data may have found no receive.
    const bool surely = weather_.perfect && message.done && !message.has_imm();
    for (uint32_t i = 0; i < message.bytes; ++i) {
      const uint32_t offset = message.remote_offset + i;
      if (surely || *target.at(offset) == message.content[i]) {
        *target.model(offset) = message.content[i];
      }
    }
  }
}

void Unreliable::Close(TimeNs now) {
  for (auto& side : sides_) {
    SettleSilent(*side);
    Move(*side, QpState::kErr, now);
    SettleSilent(*side);
    if (side->settled_sends < side->sends.size() ||
        side->settled_receives < side->receives.size()) {
      Blame(*side, "not all was flushed");
    }
  }
  for (auto& side : sides_) CheckWrites(*side);
  for (auto& side : sides_) {
    const size_t at = side->arena.FirstDifference();
    if (at != side->arena.size()) Blame(*side, "byte ", at, " is not what anybody wrote");
  }
}

}  // namespace rdmad::sim
