// What excuses a completion that is no success.
#include "tests/sim/end.h"

namespace rdmad::sim {

using device::QpState;
using device::WcStatus;
using device::WrOpcode;

// Its window's end was asked for meanwhile, or it never had a beginning.
bool End::MayBeRefused(const SendRecord& record) const {
  if (record.grant == kNoGrant || record.right() == 0) return false;
  const Windows::Grant& grant = peer_->windows_[record.grant];
  return grant.state != Windows::State::kLive || grant.contested;
}

// Whether `status` may be what ends the row of this end's sends.
bool End::HasCause(const SendRecord& record, WcStatus status) const {
  const bool local_path = qp_->same_daemon();
  const auto& peers = peer_->receives_;
  const RecvRecord* const receive =
      record.takes_receive() && record.receive < peers.size() ? &peers[record.receive] : nullptr;
  const bool peer_naughty = peer_->terms_.naughty || peer_->withdrawn_ || withdrawn_;
  // Which receive it takes of those that others draw on, too, is not known here.
  const bool any_receive = peer_->shared_ != nullptr && terms_.naughty && record.takes_receive();
  const bool invalidates = record.opcode == WrOpcode::kSendWithInv;
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
    case WcStatus::kLocQpOpErr:
      return record.opcode == WrOpcode::kLocalInv &&
             (record.mischief == Mischief::kStaleKey || windows_[record.grant].contested);
    case WcStatus::kMwBindErr:
      return record.opcode == WrOpcode::kBindMw &&
             (record.mischief == Mischief::kBadBind || withdrawn_);
    case WcStatus::kRemAccessErr:
      return record.mischief == Mischief::kBadRkey || record.mischief == Mischief::kBeyondRegion ||
             record.mischief == Mischief::kNoRight ||
             (record.mischief == Mischief::kStaleKey && !invalidates) || peer_->withdrawn_ ||
             (!invalidates && MayBeRefused(record));
    case WcStatus::kRemInvReqErr:
      if (record.mischief == Mischief::kMisaligned) return true;
      if (invalidates &&
          (record.mischief == Mischief::kStaleKey || peer_->windows_[record.grant].contested)) {
        return true;
      }
      if ((record.right() & ~peer_->terms_.access) != 0) return true;
      if (any_receive && record.is_send()) return true;
      return receive != nullptr && record.is_send() && receive->capacity < record.bytes;
    case WcStatus::kRemOpErr:
      if (any_receive && record.is_send()) return true;
      return receive != nullptr && record.is_send() && (receive->broken || peer_->withdrawn_);
    default:
      return false;
  }
}

bool End::HasCause(const RecvRecord& receive, WcStatus status) const {
  const SendRecord* const message = NextMessage();
  switch (status) {
    case WcStatus::kWrFlushErr:
      return qp_->Query().state == QpState::kErr;
    case WcStatus::kLocLenErr:
      return message != nullptr && message->bytes > receive.capacity;
    case WcStatus::kLocProtErr:
      return receive.broken || (withdrawn_ && shared_ == nullptr);
    case WcStatus::kRemAccessErr:
      // Of a WRITE with immediate data.
      return (message != nullptr &&
              (message->mischief == Mischief::kBadRkey ||
               message->mischief == Mischief::kBeyondRegion ||
               message->mischief == Mischief::kStaleKey ||
               message->mischief == Mischief::kNoRight || peer_->MayBeRefused(*message))) ||
             withdrawn_;
    case WcStatus::kRemInvReqErr:
      return message != nullptr && message->opcode == WrOpcode::kSendWithInv &&
             (message->mischief == Mischief::kStaleKey || windows_[message->grant].contested);
    default:
      return false;
  }
}

}  // namespace rdmad::sim
