// How an end judges completions; end_cause.cc: failures.
#include <algorithm>
#include <cstring>

#include "proto/shm/completion_queue.h"
#include "tests/sim/end.h"

namespace rdmad::sim {

using device::QpState;
using device::Wc;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;

namespace {

WcOpcode OpcodeOf(const SendRecord& record) {
  switch (record.opcode) {
    case WrOpcode::kRdmaWrite:
    case WrOpcode::kRdmaWriteWithImm:
      return WcOpcode::kRdmaWrite;
    case WrOpcode::kRdmaRead:
      return WcOpcode::kRdmaRead;
    case WrOpcode::kCompareSwap:
      return WcOpcode::kCompSwap;
    case WrOpcode::kFetchAdd:
      return WcOpcode::kFetchAdd;
    case WrOpcode::kBindMw:
      return WcOpcode::kBindMw;
    case WrOpcode::kLocalInv:
      return WcOpcode::kLocalInv;
    default:
      return WcOpcode::kSend;
  }
}

}  // namespace

void End::OnSendCompletion(const Wc& wc) {
  verdict_.Mix(wc.wr_id << 16 | static_cast<uint64_t>(wc.status));
  verdict_.Trace("  ", name_, " send ", wc.wr_id, " status ", static_cast<int>(wc.status));
  ++completions_;
  if (forgotten_) return Blame("a completion after the QP was reset or destroyed");
  if (wc.wr_id >= sends_.size() || wc.wr_id < settled_sends_) {
    return Blame("send ", wc.wr_id, " completes out of order or twice; ", Describe());
  }
  // WRs that nobody wanted to hear of are done with the one behind them.
  while (settled_sends_ < wc.wr_id) {
    const SendRecord& silent = sends_[settled_sends_];
    if (send_failed_ || (silent.flags & shm::kWorkSignaled) != 0 || terms_.signal_all) {
      return Blame("send ", settled_sends_, " has no completion, ", wc.wr_id, " has one");
    }
    if (silent.mischief != Mischief::kNone) {
      return Blame("send ", settled_sends_, " asked for trouble and had none");
    }
    SettleDone(settled_sends_++);
  }
  const SendRecord& record = sends_[wc.wr_id];
  if (wc.qpn != qp_->qpn()) Blame("send ", wc.wr_id, " completes for qpn ", wc.qpn);
  if (wc.opcode != OpcodeOf(record)) {
    Blame("send ", wc.wr_id, " has opcode ", static_cast<int>(wc.opcode));
  }
  if (wc.wqe_count != wc.wr_id + 1) Blame("send ", wc.wr_id, " counts ", wc.wqe_count);
  ++settled_sends_;
  if (wc.status == WcStatus::kSuccess) {
    ++successes_;
    if (send_failed_) Blame("send ", wc.wr_id, " succeeds behind one that failed");
    if (record.mischief != Mischief::kNone) {
      Blame("send ", wc.wr_id, " asked for trouble (", static_cast<int>(record.mischief),
            ") and had none");
    }
    if (wc.byte_len != record.bytes) Blame("send ", wc.wr_id, " has length ", wc.byte_len);
    SettleDone(wc.wr_id);
    return;
  }
  const bool first = !std::exchange(send_failed_, true);
  broken_ = true;
  if (wc.status == WcStatus::kRemAccessErr) peer_must_know_ = !peer_->disturbed_;
  SettleFailed(wc.wr_id);
  if (!first) {
    if (wc.status != WcStatus::kWrFlushErr) {
      Blame("send ", wc.wr_id, " has status ", static_cast<int>(wc.status), " behind a failure");
    }
    return;
  }
  if (!HasCause(record, wc.status)) {
    Blame("send ", wc.wr_id, " op ", static_cast<int>(record.opcode), " bytes ", record.bytes,
          " mischief ", static_cast<int>(record.mischief), " has status ",
          static_cast<int>(wc.status), " without a cause; ", Describe(), "; peer ",
          peer_->Describe());
  }
}

void End::SettleDone(size_t index) {
  SendRecord& record = sends_[index];
  if (record.is_write()) {
    // (Not by memcpy, to which no content is a null pointer.)
    std::copy_n(record.content.begin(), record.bytes, peer_->arena_.model(record.remote_offset));
  } else if (record.is_read()) {
    CheckRead(index);
  } else if (record.is_atomic()) {
    CheckAtomic(index);
  }
  SettleGrant(record, true);
  arena_.ReturnCell(std::exchange(record.cell, Arena::kNoCell));
}

void End::SettleFailed(size_t index) {
  SendRecord& record = sends_[index];
  if (record.is_write()) open_writes_.push_back(index);
  if (record.is_atomic()) open_atomics_.push_back(index);
  SettleGrant(record, false);
  if (record.cell != Arena::kNoCell) arena_.Accept(record.pieces);
  arena_.ReturnCell(std::exchange(record.cell, Arena::kNoCell));
}

// The model holds what all WRs before this one have left. What a later one brings may be seen too:
// only a fence keeps it back.
void End::CheckRead(size_t index) {
  const SendRecord& read = sends_[index];
  const std::vector<std::byte> got = arena_.Read(read.pieces);
  const std::byte* const model = peer_->arena_.model(read.remote_offset);
  for (uint32_t i = 0; i < read.bytes; ++i) {
    if (got[i] == model[i]) continue;
    const uint32_t offset = read.remote_offset + i;
    bool later = false;
    for (size_t k = index + 1; k < sends_.size() && !later; ++k) {
      const SendRecord& write = sends_[k];
      if ((write.flags & shm::kWorkFence) != 0) break;
      later = write.is_write() && offset >= write.remote_offset &&
              offset - write.remote_offset < write.bytes &&
              write.content[offset - write.remote_offset] == got[i];
    }
    if (later) continue;
    Blame("read ", index, " of ", read.bytes, " bytes has a wrong byte at ", i);
    break;
  }
  arena_.Accept(read.pieces);
}

void End::CheckAtomic(size_t index) {
  const SendRecord& atomic = sends_[index];
  const std::vector<std::byte> got = arena_.Read(atomic.pieces);
  uint64_t original;
  std::memcpy(&original, got.data(), sizeof(original));
  const uint64_t expected = peer_->arena_.model_word(atomic.remote_offset);
  if (original != expected) {
    Blame("atomic ", index, " found ", original, " and not ", expected,
          ": one was executed twice, or not at all");
  }
  peer_->arena_.set_model_word(atomic.remote_offset, AfterAtomic(atomic, expected));
  arena_.Accept(atomic.pieces);
}

const SendRecord* End::NextMessage() const {
  const auto& takers = peer_->takers_;
  return received_ < takers.size() ? &peer_->sends_[takers[received_]] : nullptr;
}

// The receive that completes now; null if it must not.
const RecvRecord* End::ReceiveFor(uint64_t wr_id) {
  if (shared_ != nullptr) return shared_->Complete(wr_id, &last_shared_);
  if (wr_id != settled_receives_ || wr_id >= receives_.size()) {
    Blame("receive ", wr_id, " completes out of order or twice; ", Describe());
    return nullptr;
  }
  return &receives_[settled_receives_++];
}

void End::OnRecvCompletion(const Wc& wc) {
  verdict_.Mix(wc.wr_id << 16 | 0x100 | static_cast<uint64_t>(wc.status));
  verdict_.Trace("  ", name_, " receive ", wc.wr_id, " status ", static_cast<int>(wc.status));
  ++completions_;
  if (forgotten_) return Blame("a receive completes after the QP was reset or destroyed");
  const RecvRecord* const receive = ReceiveFor(wc.wr_id);
  if (receive == nullptr) return;
  if (wc.qpn != qp_->qpn()) Blame("receive ", wc.wr_id, " completes for qpn ", wc.qpn);
  if ((wc.flags & shm::kCqeRecvQueue) == 0) Blame("receive ", wc.wr_id, " has no receive flag");
  if (wc.status == WcStatus::kSuccess) {
    ++successes_;
    if (recv_failed_) Blame("receive ", wc.wr_id, " succeeds behind one that failed");
    OnReceived(wc, *receive);
    ++received_;
    SettleReceive(wc.wr_id, true);
    return;
  }
  const bool first = !std::exchange(recv_failed_, true);
  broken_ = true;
  if (!HasCause(*receive, wc.status) || (!first && wc.status != WcStatus::kWrFlushErr)) {
    Blame("receive ", wc.wr_id, " has status ", static_cast<int>(wc.status), " without a cause; ",
          Describe());
  }
  SettleReceive(wc.wr_id, false);
}

void End::OnReceived(const Wc& wc, const RecvRecord& receive) {
  const SendRecord* const message = NextMessage();
  if (message == nullptr) return Blame("receive ", wc.wr_id, " completes and nothing was sent");
  const bool write = message->is_write();
  const bool imm = message->has_imm();
  if (wc.opcode != (write ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv)) {
    Blame("receive ", wc.wr_id, " has opcode ", static_cast<int>(wc.opcode));
  }
  if (((wc.flags & shm::kCqeWithImm) != 0) != imm || (imm && wc.imm_be != message->imm_be)) {
    Blame("receive ", wc.wr_id, " has immediate data ", wc.imm_be, " and not ", message->imm_be);
  }
  CheckInvalidated(wc, *message);
  if (wc.solicited != ((message->flags & shm::kWorkSolicited) != 0)) {
    Blame("receive ", wc.wr_id, " is solicited or not, and wrongly so");
  }
  if (wc.byte_len != message->bytes) {
    Blame("receive ", wc.wr_id, " has length ", wc.byte_len, " and not ", message->bytes);
  }
  if (write) {
    // Executed in order, so nothing later has overwritten it yet.
    if (!std::equal(message->content.begin(), message->content.begin() + message->bytes,
                    arena_.at(message->remote_offset))) {
      Blame("receive ", wc.wr_id, " tells of a write that is not there");
    }
    return;
  }
  if (message->bytes > receive.capacity) {
    return Blame("receive ", wc.wr_id, " took more than it holds");
  }
  std::vector<std::byte> got = recv_arena().Read(receive.pieces);
  got.resize(message->bytes);
  if (got != message->content) Blame("receive ", wc.wr_id, " has wrong bytes");
  recv_arena().Accept(receive.pieces, message->bytes);
}

// The key is dead before the receiver hears of it.
void End::CheckInvalidated(const Wc& wc, const SendRecord& message) {
  const bool invalidates = message.opcode == WrOpcode::kSendWithInv;
  if (((wc.flags & shm::kCqeWithInv) != 0) != invalidates) {
    Blame("receive ", wc.wr_id, " tells of an invalidation or not, and wrongly so");
  }
  if (!invalidates) return;
  Windows::Grant& grant = windows_[message.grant];
  if (message.mischief == Mischief::kStaleKey) Blame("a dead key is invalidated again");
  if (wc.imm_be != grant.key) Blame("receive ", wc.wr_id, " tells of another key");
  if (transport_.mrs().MayInvalidate(grant.key, qp_->context().key_scope)) {
    Blame("receive ", wc.wr_id, " tells of an invalidation that has not happened");
  }
  grant.state = Windows::State::kDead;
}

// `whole`: what is in its memory has been judged.
void End::SettleReceive(uint64_t wr_id, bool whole) {
  if (shared_ != nullptr) {
    if (!whole) shared_->Spoil(wr_id);
    shared_->Return(wr_id);
    return;
  }
  if (!whole) arena_.Accept(receives_[wr_id].pieces);
  arena_.ReturnCell(receives_[wr_id].cell);
}

}  // namespace rdmad::sim
