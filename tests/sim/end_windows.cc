// How an end binds, uses and ends memory windows. What it does then is right, unless its terms are
// naughty.
#include <algorithm>

#include "tests/sim/end.h"

namespace rdmad::sim {

using device::WrOpcode;
using State = Windows::State;

namespace {

constexpr uint32_t kRemoteRights[] = {device::kAccessRemoteRead, device::kAccessRemoteWrite,
                                      device::kAccessRemoteAtomic};

}  // namespace

bool End::PostBind(TimeNs now) {
  if (target_mr_ == nullptr) return false;
  const bool bad = terms_.naughty && random_.Chance(0.05);
  const bool taken = bad && random_.Chance(0.5);
  const size_t window = windows_.PickWindow(taken, random_);
  if (window == SIZE_MAX) return false;
  if (taken) windows_.Contest(window);  // the peer must not end it before the bind has failed
  const Piece exposed = arena_.exposed();
  Piece range{exposed.offset + random_.Below(exposed.bytes), 0};
  if (random_.Chance(0.3)) range.offset = exposed.offset;
  const uint32_t most = exposed.offset + exposed.bytes - range.offset;
  range.bytes = random_.Chance(0.5) ? most : 1 + random_.Below(most);
  uint32_t access = 0;
  for (const uint32_t right : kRemoteRights) access |= random_.Chance(0.8) ? right : 0;

  SendRecord record;
  record.opcode = WrOpcode::kBindMw;
  if (random_.Chance(0.8)) record.flags |= shm::kWorkSignaled;
  record.grant = windows_.Add(window, range, access);
  if (record.grant == kNoGrant) return false;
  if (bad) record.mischief = Mischief::kBadBind;
  device::SendWr wr = WrFor(record);
  wr.rkey = windows_[record.grant].key;
  wr.bind_lkey = target_mr_->lkey();
  wr.remote_addr = Address(range.offset);
  wr.compare_add = bad && !taken ? most + 1 : range.bytes;
  wr.swap = access;
  if (Submit(std::move(record), wr, now)) return true;
  windows_.RemoveLast();
  return false;
}

// Local, or by a bind of no bytes. Of a grant that nobody uses, if the terms are good.
bool End::PostLocalInvalidation(TimeNs now) {
  const bool stale = terms_.naughty && random_.Chance(0.1);
  const size_t index = windows_.Pick(stale ? State::kDead : State::kLive, random_);
  if (index == kNoGrant) return false;
  const bool in_use = peer_->IsInUse(index);
  if (in_use && !terms_.naughty) return false;
  SendRecord record;
  record.opcode = WrOpcode::kLocalInv;
  if (random_.Chance(0.8)) record.flags |= shm::kWorkSignaled;
  record.grant = index;
  if (stale) record.mischief = Mischief::kStaleKey;
  device::SendWr wr = WrFor(record);
  wr.imm_be = windows_[index].key;
  const Windows::Grant before = windows_[index];
  if (!stale) {
    windows_[index].state = State::kEnding;
    windows_[index].ended_here = true;
    windows_[index].contested |= in_use;
  }
  if (Submit(std::move(record), wr, now)) return true;
  windows_[index] = before;
  return false;
}

bool End::IsInUse(size_t grant) const {
  return std::any_of(
      sends_.begin() + static_cast<long>(settled_sends_), sends_.end(),
      [grant](const SendRecord& record) { return record.grant == grant && !record.is_local(); });
}

void End::GoByWindow(SendRecord& record) {
  const bool naughty = terms_.naughty && record.bytes > 0;
  const bool stale = naughty && random_.Chance(0.08);
  const size_t index = peer_->windows_.Pick(stale ? State::kDead : State::kLive, random_);
  if (index == kNoGrant) return;
  const Windows::Grant& grant = peer_->windows_[index];
  const bool has_right = (grant.access & record.right()) != 0;
  if (!has_right && !stale && (!naughty || !random_.Chance(0.05))) return;
  const Piece range = grant.range;
  if (record.is_atomic()) {
    const uint32_t end = range.offset + range.bytes;
    if (record.remote_offset < range.offset || record.remote_offset + 8 > end) return;
  } else {
    record.bytes = std::min(record.bytes, range.bytes);
    const Arena& target = peer_->arena_;
    // Words are for atomics alone.
    const uint32_t end =
        std::min(range.offset + range.bytes, target.target_offset() + target.target_bytes());
    if (range.offset + record.bytes > end) return;
    record.remote_offset = range.offset + random_.Below(end - range.offset - record.bytes + 1);
  }
  record.grant = index;
  if (record.bytes == 0) return;  // names no memory: whatever the key is
  if (stale) {
    record.mischief = Mischief::kStaleKey;
  } else if (!has_right) {
    record.mischief = Mischief::kNoRight;
  }
}

// Makes a SEND one that ends a grant of the peer's.
bool End::ChooseInvalidation(SendRecord& record) {
  const bool stale = terms_.naughty && random_.Chance(0.1);
  const size_t index = peer_->windows_.Pick(stale ? State::kDead : State::kLive, random_);
  if (index == kNoGrant) return false;
  Windows::Grant& grant = peer_->windows_[index];
  record.opcode = WrOpcode::kSendWithInv;
  record.grant = index;
  record.imm_be = grant.key;
  // What a READ has brought may have to be asked for again, as long as it is not done.
  record.flags |= shm::kWorkFence;
  if (stale) {
    record.mischief = Mischief::kStaleKey;
  } else {
    grant.state = State::kEnding;
  }
  return true;
}

void End::CheckTurns() {
  if (qp_ == nullptr || forgotten_ || terms_.windows == 0) return;
  const soft::SendQueue& queue = qp_->requester().queue();
  const size_t open = queue.tail() - queue.head();
  // From the one behind the head on.
  for (size_t i = sends_.size() - open + 1; i < sends_.size(); ++i) {
    const SendRecord& record = sends_[i];
    if (!record.is_local() || record.mischief != Mischief::kNone) continue;
    const Windows::Grant& grant = windows_[record.grant];
    const bool bound = transport_.mrs().MayInvalidate(grant.key, qp_->context().key_scope);
    if (record.opcode == WrOpcode::kBindMw && bound) Blame("bind ", i, " is done before its turn");
    if (record.opcode == WrOpcode::kLocalInv && grant.bound && !grant.contested && !bound) {
      Blame("invalidation ", i, " is done before its turn");
    }
  }
}

// What is known of the grant, once the WR has its fate.
void End::SettleGrant(const SendRecord& record, bool done) {
  if (record.grant == kNoGrant || record.mischief == Mischief::kStaleKey) return;
  if (record.right() != 0 && record.bytes > 0) peer_->windows_[record.grant].used |= done;
  if (record.opcode == WrOpcode::kBindMw) {
    Windows::Grant& grant = windows_[record.grant];
    grant.bound |= done;
    if (done && grant.state == State::kBinding) grant.state = State::kLive;
    if (!done) grant.state = State::kEnding;
  } else if (record.opcode == WrOpcode::kLocalInv) {
    windows_[record.grant].state = done ? State::kDead : State::kEnding;
    windows_[record.grant].contested |= !done;
    if (done) NoteEnd(windows_[record.grant]);
  } else if (record.opcode == WrOpcode::kSendWithInv) {
    peer_->windows_[record.grant].state = done ? State::kDead : State::kEnding;
    peer_->windows_[record.grant].contested |= !done;
    if (done) NoteEnd(peer_->windows_[record.grant]);
  }
}

}  // namespace rdmad::sim
