#include "daemon/device/soft/cm/cm_state.h"

#include <array>

namespace rdmad::soft {
namespace {

template <typename... States>
constexpr uint16_t Set(States... states) noexcept {
  return static_cast<uint16_t>((0u | ... | (1u << static_cast<unsigned>(states))));
}

using enum CmState;

constexpr std::array<uint16_t, kCmStateCount> kLegalNext = {
    /* kReqSent     */ Set(kRepRcvd, kClosed),
    /* kRepRcvd     */ Set(kEstablished, kClosed),
    /* kReqRcvd     */ Set(kRepSent, kRejected, kClosed),
    /* kRepSent     */ Set(kEstablished, kDreqSent, kTimewait, kRejected, kClosed),
    /* kEstablished */ Set(kDreqSent, kTimewait, kClosed),
    /* kDreqSent    */ Set(kTimewait, kClosed),
    /* kTimewait    */ Set(kClosed),
    /* kRejected    */ Set(kClosed),
    /* kClosed      */ Set(),
};

}  // namespace

const char* CmStateName(CmState state) noexcept {
  switch (state) {
    case kReqSent:
      return "req_sent";
    case kRepRcvd:
      return "rep_rcvd";
    case kReqRcvd:
      return "req_rcvd";
    case kRepSent:
      return "rep_sent";
    case kEstablished:
      return "established";
    case kDreqSent:
      return "dreq_sent";
    case kTimewait:
      return "timewait";
    case kRejected:
      return "rejected";
    case kClosed:
      return "closed";
  }
  return "unknown";
}

bool IsLegalMove(CmState from, CmState to) noexcept {
  return (kLegalNext[static_cast<unsigned>(from)] >> static_cast<unsigned>(to) & 1) != 0;
}

}  // namespace rdmad::soft
