#include "daemon/device/soft/cm/cm_facts.h"

#include <algorithm>

namespace rdmad::soft {
namespace {

constexpr uint8_t kLongestAckTimeout = 22;  // 17 s

using namespace device;  // NOLINT: the attribute names below are all of that room

// What nobody waits for has no timers, and without responses there are none to hold.
constexpr uint32_t kReliableOnly = kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer | kQpAttrTimeout |
                                   kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic;

void SetInit(const CmFacts& facts, QpAttr* attr) {
  attr->mask |= kQpAttrAccessFlags | kQpAttrPkeyIndex | kQpAttrPort;
  attr->access_flags = kAccessRemoteWrite;
  if (facts.qp_type == QpType::kUc) return;
  if (facts.responder_resources > 0) attr->access_flags |= kAccessRemoteRead | kAccessRemoteAtomic;
}

void SetRtr(const CmFacts& facts, uint8_t min_rnr_timer, QpAttr* attr) {
  attr->mask |= kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
                kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
  attr->av.dest = facts.flow.remote;
  attr->av.sgid_index = facts.sgid_index;
  attr->av.traffic_class = facts.flow.traffic_class;
  attr->av.hop_limit = facts.flow.hop_limit;
  attr->path_mtu = facts.path_mtu;
  attr->dest_qpn = facts.remote_qpn.value();
  attr->rq_psn = facts.local_psn.value();
  attr->max_dest_rd_atomic = facts.responder_resources;
  attr->min_rnr_timer = min_rnr_timer;
}

void SetRts(const CmFacts& facts, QpAttr* attr) {
  attr->mask |=
      kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic;
  attr->sq_psn = facts.remote_psn.value();
  attr->timeout = facts.ack_timeout;
  attr->retry_count = facts.retry_count;
  attr->rnr_retry = facts.rnr_retry_count;
  attr->max_rd_atomic = facts.initiator_depth;
}

}  // namespace

uint8_t AckTimeoutCode(uint8_t path_timeout, uint8_t ack_delay) noexcept {
  const int longer = std::max(path_timeout, ack_delay);
  const int shorter = std::min(path_timeout, ack_delay);
  // Less than half of the longer one is lost in the rounding.
  return static_cast<uint8_t>(std::min(31, shorter + 1 >= longer ? longer + 1 : longer));
}

uint8_t BoundedAckTimeout(uint8_t wanted, uint8_t fallback) noexcept {
  return wanted == 0 ? fallback : std::min(wanted, kLongestAckTimeout);
}

uint32_t SgidIndexOf(const Device& device, const IpAddress& address) {
  for (const GidEntry& entry : device.Gids()) {
    if (entry.address == address) return entry.index;
  }
  return 0;
}

absl::StatusOr<QpAttr> MakeQpAttr(const CmFacts& facts, QpState state, uint8_t min_rnr_timer) {
  QpAttr attr;
  attr.mask = kQpAttrState;
  attr.state = state;
  switch (state) {
    case QpState::kInit:
      SetInit(facts, &attr);
      return attr;
    case QpState::kRtr:
      SetRtr(facts, min_rnr_timer, &attr);
      break;
    case QpState::kRts:
      SetRts(facts, &attr);
      break;
    case QpState::kReset:
    case QpState::kSqd:
    case QpState::kSqe:
    case QpState::kErr:
      return absl::InvalidArgumentError("init_qp_attr: only INIT, RTR and RTS have attributes");
  }
  if (facts.qp_type == QpType::kUc) attr.mask &= ~kReliableOnly;
  return attr;
}

}  // namespace rdmad::soft
