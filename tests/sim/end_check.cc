// How an end judges completions.
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
    default:
      return WcOpcode::kSend;
  }
}

bool IsAtomic(const SendRecord& record) {
  return record.opcode == WrOpcode::kCompareSwap || record.opcode == WrOpcode::kFetchAdd;
}
bool IsWrite(const SendRecord& record) {
  return record.opcode == WrOpcode::kRdmaWrite || record.opcode == WrOpcode::kRdmaWriteWithImm;
}

uint32_t RightFor(const SendRecord& record) {
  if (IsWrite(record)) return device::kAccessRemoteWrite;
  if (record.opcode == WrOpcode::kRdmaRead) return device::kAccessRemoteRead;
  return IsAtomic(record) ? uint32_t{device::kAccessRemoteAtomic} : 0;
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

// Whether `status` may be what ends the row of this end's sends.
bool End::HasCause(const SendRecord& record, WcStatus status) const {
  const bool local_path = qp_->same_daemon();
  const auto& peers = peer_->receives_;
  const RecvRecord* const receive =
      record.takes_receive() && record.receive < peers.size() ? &peers[record.receive] : nullptr;
  const bool peer_naughty = peer_->terms_.naughty || peer_->withdrawn_ || withdrawn_;
  switch (status) {
    case WcStatus::kWrFlushErr:
      // By order, or since what the peer sent was not good.
      return told_to_fail_ || peer_naughty || terms_.access != kFullAccess;
    case WcStatus::kRetryExcErr:
      if (!peer_->is_alive() || peer_->disturbed_) return true;
      if (local_path && !excuses_.loses_some) return false;
      return excuses_.loses_much || (excuses_.loses_some && terms_.retry_count < 7);
    case WcStatus::kRnrRetryExcErr:
      return record.takes_receive() && terms_.rnr_retry < 7;
    case WcStatus::kLocLenErr:
      return record.mischief == Mischief::kTooLong;
    case WcStatus::kLocProtErr:
      return record.mischief == Mischief::kBadLkey || withdrawn_;
    case WcStatus::kRemAccessErr:
      return record.mischief == Mischief::kBadRkey || record.mischief == Mischief::kBeyondRegion ||
             peer_->withdrawn_;
    case WcStatus::kRemInvReqErr:
      if (record.mischief == Mischief::kMisaligned) return true;
      if ((RightFor(record) & ~peer_->terms_.access) != 0) return true;
      return receive != nullptr && !IsWrite(record) && receive->capacity < record.bytes;
    case WcStatus::kRemOpErr:
      return receive != nullptr && !IsWrite(record) && (receive->broken || peer_->withdrawn_);
    default:
      return false;
  }
}

void End::SettleDone(size_t index) {
  SendRecord& record = sends_[index];
  if (IsWrite(record)) {
    // (Not by memcpy, to which no content is a null pointer.)
    std::copy_n(record.content.begin(), record.bytes, peer_->arena_.model(record.remote_offset));
  } else if (record.opcode == WrOpcode::kRdmaRead) {
    CheckRead(index);
  } else if (IsAtomic(record)) {
    CheckAtomic(index);
  }
  arena_.ReturnCell(std::exchange(record.cell, Arena::kNoCell));
}

void End::SettleFailed(size_t index) {
  SendRecord& record = sends_[index];
  if (IsWrite(record)) open_writes_.push_back(index);
  if (IsAtomic(record)) open_atomics_.push_back(index);
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
      later = IsWrite(write) && offset >= write.remote_offset &&
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

const SendRecord* End::MessageFor(size_t receive) const {
  const auto& takers = peer_->takers_;
  return receive < takers.size() ? &peer_->sends_[takers[receive]] : nullptr;
}

void End::OnRecvCompletion(const Wc& wc) {
  verdict_.Mix(wc.wr_id << 16 | 0x100 | static_cast<uint64_t>(wc.status));
  verdict_.Trace("  ", name_, " receive ", wc.wr_id, " status ", static_cast<int>(wc.status));
  ++completions_;
  if (forgotten_) return Blame("a receive completes after the QP was reset or destroyed");
  if (wc.wr_id != settled_receives_ || wc.wr_id >= receives_.size()) {
    return Blame("receive ", wc.wr_id, " completes out of order or twice; ", Describe());
  }
  if (wc.qpn != qp_->qpn()) Blame("receive ", wc.wr_id, " completes for qpn ", wc.qpn);
  if ((wc.flags & shm::kCqeRecvQueue) == 0) Blame("receive ", wc.wr_id, " has no receive flag");
  const size_t index = settled_receives_++;
  if (wc.status == WcStatus::kSuccess) {
    ++successes_;
    if (recv_failed_) Blame("receive ", index, " succeeds behind one that failed");
    ++received_;
    OnReceived(wc, receives_[index]);
    arena_.ReturnCell(receives_[index].cell);
    return;
  }
  const bool first = !std::exchange(recv_failed_, true);
  broken_ = true;
  if (!HasCause(index, wc.status) || (!first && wc.status != WcStatus::kWrFlushErr)) {
    Blame("receive ", index, " has status ", static_cast<int>(wc.status), " without a cause; ",
          Describe());
  }
  SettleFailedReceive(index);
}

void End::OnReceived(const Wc& wc, const RecvRecord& receive) {
  const SendRecord* const message = MessageFor(wc.wr_id);
  if (message == nullptr) return Blame("receive ", wc.wr_id, " completes and nothing was sent");
  const bool write = IsWrite(*message);
  const bool imm = message->opcode != WrOpcode::kSend;
  if (wc.opcode != (write ? WcOpcode::kRecvRdmaWithImm : WcOpcode::kRecv)) {
    Blame("receive ", wc.wr_id, " has opcode ", static_cast<int>(wc.opcode));
  }
  if (((wc.flags & shm::kCqeWithImm) != 0) != imm || (imm && wc.imm_be != message->imm_be)) {
    Blame("receive ", wc.wr_id, " has immediate data ", wc.imm_be, " and not ", message->imm_be);
  }
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
  std::vector<std::byte> got = arena_.Read(receive.pieces);
  got.resize(message->bytes);
  if (got != message->content) Blame("receive ", wc.wr_id, " has wrong bytes");
  arena_.Accept(receive.pieces, message->bytes);
}

bool End::HasCause(size_t index, WcStatus status) const {
  const SendRecord* const message = MessageFor(index);
  const RecvRecord& receive = receives_[index];
  switch (status) {
    case WcStatus::kWrFlushErr:
      return qp_->Query().state == QpState::kErr;
    case WcStatus::kLocLenErr:
      return message != nullptr && message->bytes > receive.capacity;
    case WcStatus::kLocProtErr:
      return receive.broken || withdrawn_;
    case WcStatus::kRemAccessErr:
      return (message != nullptr && (message->mischief == Mischief::kBadRkey ||
                                     message->mischief == Mischief::kBeyondRegion)) ||
             withdrawn_;
    default:
      return false;
  }
}

void End::SettleFailedReceive(size_t index) {
  arena_.Accept(receives_[index].pieces);
  arena_.ReturnCell(receives_[index].cell);
}

}  // namespace rdmad::sim
