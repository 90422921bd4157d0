// How an end posts: random operations of random sizes, some of them asking for trouble.
#include <algorithm>
#include <array>

#include "tests/sim/end.h"

namespace rdmad::sim {

using device::PostResult;
using device::QpState;
using device::WrOpcode;

namespace {

constexpr uint32_t kBadKey = 0xdead00;

}  // namespace

// Half of the time where sizes are interesting.
uint32_t End::RandomSize() {
  const uint32_t max = terms_.max_message_bytes;
  const uint32_t mtu = device::MtuBytes(terms_.mtu);
  if (random_.Chance(0.5)) return random_.Below(uint64_t{max} + 1);
  const uint32_t packets = random_.Below(max / mtu + 1);
  const uint32_t edge = packets * mtu + random_.Below(3);
  return std::min(edge == 0 ? 0 : edge - 1, max);
}

std::vector<device::Sge> End::Sges(const std::vector<Piece>& pieces, bool bad_key) {
  const uint32_t lkey = local_mr_ == nullptr ? kBadKey : local_mr_->lkey();
  std::vector<device::Sge> sges;
  for (const Piece& piece : pieces) {
    // Pieces of no bytes name nothing: their key may be anything.
    sges.push_back({Address(piece.offset), piece.bytes, piece.bytes == 0 ? kBadKey : lkey});
  }
  if (!bad_key) return sges;
  std::vector<size_t> full;
  for (size_t i = 0; i < sges.size(); ++i) {
    if (sges[i].length_bytes > 0) full.push_back(i);
  }
  if (!full.empty()) sges[full[random_.Below(full.size())]].lkey = kBadKey;
  return sges;
}

void End::Misbehave(SendRecord& record) {
  const bool atomic = record.is_atomic();
  const bool is_inline = (record.flags & shm::kWorkInline) != 0;
  const bool remote = !record.is_send();
  if (record.bytes == 0 || record.mischief != Mischief::kNone) return;
  switch (random_.Below(5)) {
    case 0:
      if (!is_inline) record.mischief = Mischief::kBadLkey;
      break;
    case 1:
      if (remote && record.grant == kNoGrant) record.mischief = Mischief::kBadRkey;
      break;
    case 2:
      if (remote && !atomic) record.mischief = Mischief::kBeyondRegion;
      break;
    case 3:
      if (atomic) record.mischief = Mischief::kMisaligned;
      break;
    case 4:
      if (!atomic && !is_inline) record.mischief = Mischief::kTooLong;
      break;
  }
}

WrOpcode End::RandomOpcode() {
  constexpr std::array kOps = {WrOpcode::kSend,      WrOpcode::kSendWithImm,
                               WrOpcode::kRdmaWrite, WrOpcode::kRdmaWriteWithImm,
                               WrOpcode::kRdmaRead,  WrOpcode::kCompareSwap,
                               WrOpcode::kFetchAdd};
  return kOps[random_.Below(kOps.size())];
}

// Makes a WRITE overwrite what the READ just before it reads, which only a fence keeps apart.
bool End::FollowRead(SendRecord& record) {
  if (!record.is_write() || sends_.empty() || !sends_.back().is_read()) return false;
  const SendRecord& read = sends_.back();
  if (read.grant != kNoGrant || read.bytes == 0 || random_.Chance(0.5)) return false;
  record.flags |= shm::kWorkFence;
  record.bytes = read.bytes;
  record.remote_offset = read.remote_offset;
  return true;
}

// Where at the peer.
void End::ChooseRemote(SendRecord& record) {
  const Arena& target = peer_->arena_;
  if (record.is_read() || record.is_write()) {
    record.remote_offset =
        target.target_offset() + random_.Below(target.target_bytes() - record.bytes + 1);
  } else if (record.is_atomic()) {
    record.remote_offset = target.word_offset(random_.Below(Arena::kWordCount));
  }
  const bool follows = FollowRead(record);
  if (!follows && !record.is_send() && terms_.windows > 0 && random_.Chance(0.6)) {
    GoByWindow(record);
  }
  if (record.is_atomic()) {
    // Half of the swaps find what they compare with.
    const bool swap = record.opcode == WrOpcode::kCompareSwap;
    record.compare_add =
        swap && random_.Chance(0.5) ? target.model_word(record.remote_offset) : random_.Next();
    record.swap = random_.Next();
  }
}

// What is sent, or where the answer goes.
void End::FillLocal(SendRecord& record) {
  if (record.is_read() || record.is_atomic()) {
    record.cell = arena_.TakeCell();
    record.pieces = arena_.Scatter(record.cell, record.bytes, terms_.max_sge, random_);
    return;
  }
  const bool is_inline = record.bytes <= soft::kMaxInlineBytes && random_.Chance(0.3);
  if (is_inline) record.flags |= shm::kWorkInline;
  record.pieces = arena_.Gather(record.bytes, is_inline ? 3 : terms_.max_sge, random_);
  record.content = arena_.Read(record.pieces);
}

device::SendWr End::WrFor(const SendRecord& record) const {
  device::SendWr wr{};
  wr.wr_id = sends_.size();
  wr.opcode = record.opcode;
  wr.flags = record.flags;
  wr.imm_be = record.imm_be;
  wr.remote_addr = Address(record.remote_offset);
  wr.rkey = peer_->target_mr_ == nullptr ? kBadKey : peer_->target_mr_->rkey();
  wr.compare_add = record.compare_add;
  wr.swap = record.swap;
  const bool by_window = record.right() != 0 && record.grant != kNoGrant;
  if (by_window) wr.rkey = peer_->windows_[record.grant].key;
  return wr;
}

bool End::PostSend(TimeNs now) {
  if (qp_ == nullptr || forgotten_ || !arena_.HasCell() || sends_.size() > 500) return false;
  if (terms_.windows > 0 && random_.Chance(0.3)) {
    return random_.Chance(0.7) ? PostBind(now) : PostLocalInvalidation(now);
  }
  SendRecord record;
  const bool invalidates = terms_.windows > 0 && random_.Chance(0.25) && ChooseInvalidation(record);
  if (!invalidates) record.opcode = RandomOpcode();
  if (random_.Chance(0.6)) record.flags |= shm::kWorkSignaled;
  if (random_.Chance(0.2)) record.flags |= shm::kWorkFence;
  if (random_.Chance(0.2)) record.flags |= shm::kWorkSolicited;
  if (!invalidates) record.imm_be = static_cast<uint32_t>(random_.Next());
  record.bytes = record.is_atomic() ? 8 : RandomSize();
  ChooseRemote(record);
  FillLocal(record);
  if (terms_.naughty && random_.Chance(0.02)) Misbehave(record);

  std::vector<device::Sge> sges;
  device::SendWr wr = WrFor(record);
  if ((record.flags & shm::kWorkInline) == 0) {
    sges = Sges(record.pieces, record.mischief == Mischief::kBadLkey);
    if (record.mischief == Mischief::kTooLong) {
      sges.back().length_bytes = soft::kMaxMessageBytes + 1;
    }
    wr.sges = sges;
  } else {
    for (size_t i = 0; i < record.pieces.size(); ++i) {
      wr.inline_data.pieces[i] = {arena_.at(record.pieces[i].offset), record.pieces[i].bytes};
    }
  }
  if (record.mischief == Mischief::kBadRkey) wr.rkey ^= 1 + random_.Below(255);
  if (record.mischief == Mischief::kMisaligned) wr.remote_addr += 1 + random_.Below(7);
  if (record.mischief == Mischief::kBeyondRegion) {
    const bool by_window = record.grant != kNoGrant;
    const Piece range = by_window ? peer_->windows_[record.grant].range : peer_->arena_.exposed();
    // The last byte lies just behind the end, or the first just before the beginning.
    wr.remote_addr = Address(random_.Chance(0.5) ? range.offset + range.bytes - record.bytes + 1
                                                 : range.offset - 1);
  }
  if (record.is_send() || record.opcode == WrOpcode::kRdmaWriteWithImm) {
    record.receive = static_cast<uint32_t>(takers_.size());
  }
  return Submit(std::move(record), wr, now);
}

// The record comes first: a QP in error completes the WR within the post.
bool End::Submit(SendRecord record, device::SendWr wr, TimeNs now) {
  const uint32_t cell = record.cell;
  if (record.takes_receive()) takers_.push_back(sends_.size());
  sends_.push_back(std::move(record));
  const size_t open = sends_.size() - 1 - settled_sends_;
  const PostResult result = qp_->PostSend(wr, now);
  if (result == PostResult::kOk) {
    verdict_.Trace(now, ' ', name_, " post send ", wr.wr_id, " op ", static_cast<int>(wr.opcode),
                   " bytes ", sends_.back().bytes, " mischief ",
                   static_cast<int>(sends_.back().mischief), " grant ",
                   static_cast<int64_t>(sends_.back().grant));
    return true;
  }
  if (sends_.back().takes_receive()) takers_.pop_back();
  if (wr.opcode == WrOpcode::kSendWithInv && sends_.back().mischief != Mischief::kStaleKey) {
    peer_->windows_[sends_.back().grant].state = Windows::State::kLive;
  }
  sends_.pop_back();
  arena_.ReturnCell(cell);
  const QpState state = qp_->Query().state;
  if (result == PostResult::kQueueFull && open >= terms_.send_depth) return false;
  if (result == PostResult::kWrongState && state < QpState::kRts) return false;
  Blame("post send refused: ", static_cast<int>(result), ' ', Describe());
  return false;
}

bool End::PostReceive(TimeNs now) {
  if (shared_ != nullptr) return shared_->Post(now);
  if (qp_ == nullptr || forgotten_ || !arena_.HasCell()) return false;
  RecvRecord record;
  record.cell = arena_.TakeCell();
  const bool short_one = terms_.naughty && random_.Chance(0.02);
  const uint32_t bytes = short_one ? RandomSize() : terms_.max_message_bytes;
  record.capacity = bytes;
  record.pieces = arena_.Scatter(record.cell, bytes, terms_.max_sge, random_);
  record.broken = bytes > 0 && terms_.naughty && random_.Chance(0.01);
  const std::vector<device::Sge> sges = Sges(record.pieces, record.broken);
  const uint32_t cell = record.cell;
  receives_.push_back(std::move(record));
  const size_t open = receives_.size() - 1 - settled_receives_;
  const PostResult result = qp_->PostRecv({.wr_id = receives_.size() - 1, .sges = sges}, now);
  if (result == PostResult::kOk) {
    verdict_.Trace(now, ' ', name_, " post receive ", receives_.size() - 1);
    return true;
  }
  receives_.pop_back();
  arena_.ReturnCell(cell);
  if (result == PostResult::kQueueFull && open >= terms_.recv_depth) return false;
  if (result == PostResult::kWrongState && qp_->Query().state == QpState::kReset) return false;
  Blame("post receive refused: ", static_cast<int>(result), ' ', Describe());
  return false;
}

}  // namespace rdmad::sim
