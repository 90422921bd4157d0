#include "daemon/device/soft/qp_attr_rules.h"

#include <optional>

#include "daemon/device/soft/limits.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {
namespace {

using device::QpAttr;
using device::QpResult;
using device::QpState;
using device::QpType;
using enum device::QpAttrMask;

struct Rule {
  uint32_t required = 0;
  uint32_t optional = 0;
};

// What every move of the type may or must name, beside kQpAttrState.
struct TypeRules {
  Rule reset_to_init;
  Rule init_to_init;
  Rule init_to_rtr;
  Rule rtr_to_rts;
  Rule rts_to_rts;  // and kSqd to kRts, kSqe to kRts
  Rule sqd_to_sqd;
};

constexpr TypeRules kRc = {
    .reset_to_init = {.required = kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags},
    .init_to_init = {.optional = kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags},
    .init_to_rtr = {.required = kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
                                kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer,
                    .optional = kQpAttrPkeyIndex | kQpAttrAccessFlags},
    .rtr_to_rts = {.required = kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry |
                               kQpAttrMaxQpRdAtomic,
                   .optional = kQpAttrCurState | kQpAttrAccessFlags | kQpAttrMinRnrTimer},
    .rts_to_rts = {.optional = kQpAttrCurState | kQpAttrAccessFlags | kQpAttrMinRnrTimer},
    .sqd_to_sqd = {.optional = kQpAttrAv | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry |
                               kQpAttrMaxQpRdAtomic | kQpAttrMaxDestRdAtomic | kQpAttrPort |
                               kQpAttrPkeyIndex | kQpAttrAccessFlags | kQpAttrMinRnrTimer},
};

constexpr TypeRules kUc = {
    .reset_to_init = {.required = kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags},
    .init_to_init = {.optional = kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags},
    .init_to_rtr = {.required = kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn,
                    .optional = kQpAttrPkeyIndex | kQpAttrAccessFlags},
    .rtr_to_rts = {.required = kQpAttrSqPsn, .optional = kQpAttrCurState | kQpAttrAccessFlags},
    .rts_to_rts = {.optional = kQpAttrCurState | kQpAttrAccessFlags},
    .sqd_to_sqd = {.optional = kQpAttrAv | kQpAttrPkeyIndex | kQpAttrAccessFlags},
};

constexpr TypeRules kUd = {
    .reset_to_init = {.required = kQpAttrPkeyIndex | kQpAttrPort | kQpAttrQkey},
    .init_to_init = {.optional = kQpAttrPkeyIndex | kQpAttrPort | kQpAttrQkey},
    .init_to_rtr = {.optional = kQpAttrPkeyIndex | kQpAttrQkey},
    .rtr_to_rts = {.required = kQpAttrSqPsn, .optional = kQpAttrCurState | kQpAttrQkey},
    .rts_to_rts = {.optional = kQpAttrCurState | kQpAttrQkey},
    .sqd_to_sqd = {.optional = kQpAttrPkeyIndex | kQpAttrQkey},
};

// Nothing if the move is not legal.
std::optional<Rule> RuleFor(QpType type, QpState from, QpState to) noexcept {
  const TypeRules& rules = type == QpType::kRc ? kRc : type == QpType::kUc ? kUc : kUd;
  if (to == QpState::kReset) return Rule{};
  if (to == QpState::kErr && from != QpState::kReset) return Rule{};
  switch (from) {
    case QpState::kReset:
      if (to == QpState::kInit) return rules.reset_to_init;
      return std::nullopt;
    case QpState::kInit:
      if (to == QpState::kInit) return rules.init_to_init;
      if (to == QpState::kRtr) return rules.init_to_rtr;
      return std::nullopt;
    case QpState::kRtr:
      if (to == QpState::kRts) return rules.rtr_to_rts;
      return std::nullopt;
    case QpState::kRts:
      if (to == QpState::kRts) return rules.rts_to_rts;
      if (to == QpState::kSqd) return Rule{.optional = kQpAttrEnSqdAsyncNotify};
      return std::nullopt;
    case QpState::kSqd:
      if (to == QpState::kRts) return rules.rts_to_rts;
      if (to == QpState::kSqd) return rules.sqd_to_sqd;
      return std::nullopt;
    case QpState::kSqe:
      if (to == QpState::kRts && type != QpType::kRc) return rules.rts_to_rts;
      return std::nullopt;
    case QpState::kErr:
      return std::nullopt;
  }
  return std::nullopt;
}

bool ValuesAreLegal(QpState current, const QpAttr& attr) noexcept {
  const auto named = [&attr](uint32_t bit) { return (attr.mask & bit) != 0; };
  if (named(kQpAttrCurState) && attr.current_state != current) return false;
  if (named(kQpAttrAccessFlags) && (attr.access_flags & ~device::kAccessAll) != 0) return false;
  if (named(kQpAttrPkeyIndex) && attr.pkey_index != 0) return false;  // RoCE has one partition
  if (named(kQpAttrPort) && attr.port != 1) return false;
  if (named(kQpAttrPathMtu) &&
      (attr.path_mtu < device::Mtu::k256 || attr.path_mtu > device::Mtu::k4096)) {
    return false;
  }
  if (named(kQpAttrTimeout) && attr.timeout > 31) return false;
  if (named(kQpAttrRetryCnt) && attr.retry_count > 7) return false;
  if (named(kQpAttrRnrRetry) && attr.rnr_retry > 7) return false;
  if (named(kQpAttrMinRnrTimer) && attr.min_rnr_timer > 31) return false;
  if (named(kQpAttrMaxQpRdAtomic) && attr.max_rd_atomic > kMaxRdAtomic) return false;
  if (named(kQpAttrMaxDestRdAtomic) && attr.max_dest_rd_atomic > kMaxRdAtomic) return false;
  if (named(kQpAttrRqPsn) && attr.rq_psn > wire::Psn::kMask) return false;
  if (named(kQpAttrSqPsn) && attr.sq_psn > wire::Psn::kMask) return false;
  if (named(kQpAttrDestQpn) &&
      (attr.dest_qpn > wire::Qpn::kMask || attr.dest_qpn <= wire::kGsiQpn.value() ||
       attr.dest_qpn == wire::kMulticastQpn.value())) {
    return false;
  }
  if (named(kQpAttrAv) && (attr.av.dest.is_any() || attr.av.dest.is_multicast())) return false;
  return true;
}

}  // namespace

QpResult CheckModify(QpType type, QpState current, const QpAttr& attr) noexcept {
  const QpState next = (attr.mask & kQpAttrState) != 0 ? attr.state : current;
  const std::optional<Rule> rule = RuleFor(type, current, next);
  if (!rule) return QpResult::kIllegalTransition;
  const uint32_t named = attr.mask & ~kQpAttrState;
  if ((named & rule->required) != rule->required) return QpResult::kMissingAttr;
  if ((named & ~(rule->required | rule->optional)) != 0) return QpResult::kExtraAttr;
  return ValuesAreLegal(current, attr) ? QpResult::kOk : QpResult::kBadValue;
}

void TakeSqdNotify(const QpAttr& attr, QpAttr* own) noexcept {
  if ((attr.mask & kQpAttrState) == 0 || own->state == QpState::kSqd) return;
  own->en_sqd_async_notify =
      (attr.mask & kQpAttrEnSqdAsyncNotify) != 0 && attr.en_sqd_async_notify;
}

}  // namespace rdmad::soft
