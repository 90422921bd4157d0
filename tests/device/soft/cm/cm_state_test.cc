#include "daemon/device/soft/cm/cm_state.h"

#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace rdmad::soft {
namespace {

using enum CmState;

TEST(CmState, OnlyTheDrawnMovesAreLegal) {
  const std::set<std::pair<CmState, CmState>> kLegal = {
      {kReqSent, kRepRcvd},      {kReqSent, kClosed},       {kRepRcvd, kEstablished},
      {kRepRcvd, kClosed},       {kReqRcvd, kRepSent},      {kReqRcvd, kRejected},
      {kReqRcvd, kClosed},       {kRepSent, kEstablished},  {kRepSent, kDreqSent},
      {kRepSent, kTimewait},     {kRepSent, kRejected},     {kRepSent, kClosed},
      {kEstablished, kDreqSent}, {kEstablished, kTimewait}, {kEstablished, kClosed},
      {kDreqSent, kTimewait},    {kDreqSent, kClosed},      {kTimewait, kClosed},
      {kRejected, kClosed},
  };
  for (int from = 0; from < kCmStateCount; ++from) {
    for (int to = 0; to < kCmStateCount; ++to) {
      const std::pair move{static_cast<CmState>(from), static_cast<CmState>(to)};
      EXPECT_EQ(IsLegalMove(move.first, move.second), kLegal.contains(move))
          << CmStateName(move.first) << " to " << CmStateName(move.second);
    }
  }
}

TEST(CmState, NamesDiffer) {
  std::set<std::string> names;
  for (int state = 0; state < kCmStateCount; ++state) {
    names.insert(CmStateName(static_cast<CmState>(state)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kCmStateCount));
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace rdmad::soft
