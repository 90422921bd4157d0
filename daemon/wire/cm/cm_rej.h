// REJ: no connection, and why.
//
// The additional information depends on the reason (an acceptable GID, say); its first `info_bytes`
// count. Applications get the reason as it is (rdma_cm's event status), so the numbers are the
// wire's.
// Source: IBTA vol. 1, Communication Management, "REJ - Reject"; table of rejection reasons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"

namespace rdmad::wire {

inline constexpr size_t kRejInfoBytes = 72;
inline constexpr size_t kRejPrivateBytes = 148;

enum class RejReason : uint16_t {
  kNoQp = 1,
  kNoEec = 2,
  kNoResources = 3,
  kTimeout = 4,
  kUnsupported = 5,
  kInvalidCommId = 6,
  kInvalidCommInstance = 7,
  kInvalidServiceId = 8,  // nobody listens
  kInvalidTransport = 9,
  kStaleConnection = 10,
  kRdcNotExist = 11,
  kInvalidGid = 12,
  kInvalidLid = 13,
  kInvalidSl = 14,
  kInvalidTrafficClass = 15,
  kInvalidHopLimit = 16,
  kInvalidPacketRate = 17,
  kInvalidAltGid = 18,
  kInvalidAltLid = 19,
  kInvalidAltSl = 20,
  kInvalidAltTrafficClass = 21,
  kInvalidAltHopLimit = 22,
  kInvalidAltPacketRate = 23,
  kPortCmRedirect = 24,
  kPortRedirect = 25,
  kInvalidMtu = 26,
  kInsufficientResponderResources = 27,
  kConsumerDefined = 28,  // the application said no
  kInvalidRnrRetry = 29,
  kDuplicateLocalCommId = 30,
  kInvalidClassVersion = 31,
  kInvalidFlowLabel = 32,
  kInvalidAltFlowLabel = 33,
};

// Name for logs: "invalid_service_id", ...; "unknown" for other values.
[[nodiscard]] const char* RejReasonName(RejReason reason) noexcept;

struct CmRej {
  static constexpr CmAttribute kAttribute = CmAttribute::kRej;

  CommId local_comm_id{};  // 0 if the sender made none
  CommId remote_comm_id{};
  CmMessageKind message = CmMessageKind::kReq;  // what is rejected
  uint8_t info_bytes = 0;                       // 7 bits; at most kRejInfoBytes is meaningful
  RejReason reason = RejReason::kConsumerDefined;
  std::array<uint8_t, kRejInfoBytes> info{};
  std::array<uint8_t, kRejPrivateBytes> private_data{};

  friend bool operator==(const CmRej&, const CmRej&) = default;
};

// `info_bytes` is handed on as received, up to 127: ParseCmMessage() refuses a REJ whose value
// exceeds the field.
[[nodiscard]] CmRej ParseCmRej(MadDataIn data) noexcept;
// Values wider than their field are cut to it.
void BuildCmRej(const CmRej& rej, MadDataOut data) noexcept;

}  // namespace rdmad::wire
