// The table of ibv_modify_qp: every pair of states, every missing and every superfluous attribute,
// every bad value.
#include "daemon/device/soft/qp_attr_rules.h"

#include <gtest/gtest.h>

#include <map>

namespace rdmad::soft {
namespace {

using device::QpAttr;
using device::QpResult;
using device::QpState;
using device::QpType;
using enum device::QpAttrMask;

constexpr QpState kAllStates[] = {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts,
                                  QpState::kSqd,   QpState::kSqe,  QpState::kErr};

// Bits beside kQpAttrState that each legal move of an RC QP must name. Written out from
// ibv_modify_qp(3).
const std::map<std::pair<QpState, QpState>, uint32_t> kRcRequired = {
    {{QpState::kReset, QpState::kReset}, 0},
    {{QpState::kReset, QpState::kInit}, kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags},
    {{QpState::kInit, QpState::kInit}, 0},
    {{QpState::kInit, QpState::kRtr},
     kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn | kQpAttrMaxDestRdAtomic |
         kQpAttrMinRnrTimer},
    {{QpState::kRtr, QpState::kRts},
     kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic},
    {{QpState::kRts, QpState::kRts}, 0},
    {{QpState::kRts, QpState::kSqd}, 0},
    {{QpState::kSqd, QpState::kRts}, 0},
    {{QpState::kSqd, QpState::kSqd}, 0},
    {{QpState::kInit, QpState::kReset}, 0},
    {{QpState::kRtr, QpState::kReset}, 0},
    {{QpState::kRts, QpState::kReset}, 0},
    {{QpState::kSqd, QpState::kReset}, 0},
    {{QpState::kSqe, QpState::kReset}, 0},
    {{QpState::kErr, QpState::kReset}, 0},
    {{QpState::kInit, QpState::kErr}, 0},
    {{QpState::kRtr, QpState::kErr}, 0},
    {{QpState::kRts, QpState::kErr}, 0},
    {{QpState::kSqd, QpState::kErr}, 0},
    {{QpState::kSqe, QpState::kErr}, 0},
    {{QpState::kErr, QpState::kErr}, 0},
};

QpAttr GoodValues(uint32_t mask, QpState next) {
  QpAttr attr;
  attr.mask = mask | kQpAttrState;
  attr.state = next;
  attr.av.dest = IpAddress::FromV4(10, 0, 0, 1);
  attr.dest_qpn = 17;
  return attr;
}

TEST(QpAttrRules, RcMovesAreLegalExactlyAsListed) {
  for (const QpState from : kAllStates) {
    for (const QpState to : kAllStates) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(from) << " to " << static_cast<int>(to));
      const auto rule = kRcRequired.find({from, to});
      const uint32_t mask = rule == kRcRequired.end() ? 0 : rule->second;
      EXPECT_EQ(CheckModify(QpType::kRc, from, GoodValues(mask, to)),
                rule == kRcRequired.end() ? QpResult::kIllegalTransition : QpResult::kOk);
    }
  }
}

TEST(QpAttrRules, EachRequiredAttributeIsMissed) {
  for (const auto& [move, required] : kRcRequired) {
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
      if ((required & bit) == 0) continue;
      EXPECT_EQ(CheckModify(QpType::kRc, move.first, GoodValues(required & ~bit, move.second)),
                QpResult::kMissingAttr)
          << bit;
    }
  }
}

TEST(QpAttrRules, AttributesThatDoNotBelongAreRefused) {
  EXPECT_EQ(CheckModify(QpType::kRc, QpState::kRts, GoodValues(kQpAttrAv, QpState::kRts)),
            QpResult::kExtraAttr);
  EXPECT_EQ(CheckModify(QpType::kRc, QpState::kRts, GoodValues(kQpAttrDestQpn, QpState::kErr)),
            QpResult::kExtraAttr);
  EXPECT_EQ(CheckModify(QpType::kRc, QpState::kRts, GoodValues(1u << 30, QpState::kRts)),
            QpResult::kExtraAttr);
  EXPECT_EQ(
      CheckModify(QpType::kRc, QpState::kReset,
                  GoodValues(kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags | kQpAttrQkey,
                             QpState::kInit)),
      QpResult::kExtraAttr);
}

TEST(QpAttrRules, WhoeverDrainsMayAskToBeToldAndNobodyElse) {
  for (const QpType type : {QpType::kRc, QpType::kUc, QpType::kUd}) {
    EXPECT_EQ(CheckModify(type, QpState::kRts, GoodValues(kQpAttrEnSqdAsyncNotify, QpState::kSqd)),
              QpResult::kOk);
    for (const QpState from : {QpState::kRts, QpState::kSqd}) {
      EXPECT_EQ(CheckModify(type, from, GoodValues(kQpAttrEnSqdAsyncNotify, QpState::kRts)),
                QpResult::kExtraAttr);
    }
  }
}

TEST(QpAttrRules, UcAndUdNeedWhatTheyUse) {
  EXPECT_EQ(CheckModify(QpType::kUd, QpState::kReset,
                        GoodValues(kQpAttrPkeyIndex | kQpAttrPort | kQpAttrQkey, QpState::kInit)),
            QpResult::kOk);
  EXPECT_EQ(CheckModify(QpType::kUd, QpState::kInit, GoodValues(0, QpState::kRtr)), QpResult::kOk);
  EXPECT_EQ(CheckModify(QpType::kUd, QpState::kRtr, GoodValues(kQpAttrSqPsn, QpState::kRts)),
            QpResult::kOk);
  EXPECT_EQ(CheckModify(QpType::kUd, QpState::kRtr, GoodValues(kQpAttrTimeout, QpState::kRts)),
            QpResult::kMissingAttr);
  EXPECT_EQ(CheckModify(QpType::kUc, QpState::kInit,
                        GoodValues(kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn,
                                   QpState::kRtr)),
            QpResult::kOk);
  EXPECT_EQ(CheckModify(QpType::kUc, QpState::kSqe, GoodValues(0, QpState::kRts)), QpResult::kOk);
  EXPECT_EQ(CheckModify(QpType::kRc, QpState::kSqe, GoodValues(0, QpState::kRts)),
            QpResult::kIllegalTransition);
}

TEST(QpAttrRules, WithoutAStateTheStateStays) {
  QpAttr attr = GoodValues(kQpAttrMinRnrTimer, QpState::kErr);
  attr.mask = kQpAttrMinRnrTimer;
  EXPECT_EQ(CheckModify(QpType::kRc, QpState::kRts, attr), QpResult::kOk);
  EXPECT_EQ(CheckModify(QpType::kRc, QpState::kReset, attr), QpResult::kExtraAttr);
}

TEST(QpAttrRules, ValuesOutOfRangeAreRefused) {
  const auto to_rtr = [](auto change) {
    QpAttr attr = GoodValues(kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
                                 kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer,
                             QpState::kRtr);
    change(attr);
    return CheckModify(QpType::kRc, QpState::kInit, attr);
  };
  EXPECT_EQ(to_rtr([](QpAttr&) {}), QpResult::kOk);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.path_mtu = static_cast<device::Mtu>(0); }),
            QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.path_mtu = static_cast<device::Mtu>(6); }),
            QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.dest_qpn = 1; }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.dest_qpn = 0xffffff; }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.dest_qpn = 0x1000000; }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.rq_psn = 0x1000000; }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.min_rnr_timer = 32; }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.max_dest_rd_atomic = 17; }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.av.dest = IpAddress(); }), QpResult::kBadValue);
  EXPECT_EQ(to_rtr([](QpAttr& a) { a.av.dest = IpAddress::FromV4(224, 0, 0, 1); }),
            QpResult::kBadValue);
  const auto to_rts = [](auto change) {
    QpAttr attr = GoodValues(kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry |
                                 kQpAttrMaxQpRdAtomic | kQpAttrCurState,
                             QpState::kRts);
    attr.current_state = QpState::kRtr;
    change(attr);
    return CheckModify(QpType::kRc, QpState::kRtr, attr);
  };
  EXPECT_EQ(to_rts([](QpAttr&) {}), QpResult::kOk);
  EXPECT_EQ(to_rts([](QpAttr& a) { a.current_state = QpState::kRts; }), QpResult::kBadValue);
  EXPECT_EQ(to_rts([](QpAttr& a) { a.timeout = 32; }), QpResult::kBadValue);
  EXPECT_EQ(to_rts([](QpAttr& a) { a.retry_count = 8; }), QpResult::kBadValue);
  EXPECT_EQ(to_rts([](QpAttr& a) { a.rnr_retry = 8; }), QpResult::kBadValue);
  EXPECT_EQ(to_rts([](QpAttr& a) { a.sq_psn = 0x1000000; }), QpResult::kBadValue);
  EXPECT_EQ(to_rts([](QpAttr& a) { a.max_rd_atomic = 17; }), QpResult::kBadValue);
}

}  // namespace
}  // namespace rdmad::soft
