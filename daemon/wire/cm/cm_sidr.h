// SIDR_REQ and SIDR_REP: which UD QP serves this service id?  No connection comes of it.
//
// Source: IBTA vol. 1, Communication Management, "Service ID Resolution Protocol".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"
#include "daemon/wire/ids.h"

namespace rdmad::wire {

inline constexpr size_t kSidrReqPrivateBytes = 216;
inline constexpr size_t kSidrRepInfoBytes = 72;
inline constexpr size_t kSidrRepPrivateBytes = 136;

enum class SidrStatus : uint8_t {
  kSuccess = 0,
  kUnsupportedServiceId = 1,
  kRejected = 2,
  kNoQp = 3,
  kRedirect = 4,
  kUnsupportedVersion = 5,
};

// Name for logs: "rejected", ...; "unknown" for other values.
[[nodiscard]] const char* SidrStatusName(SidrStatus status) noexcept;

struct CmSidrReq {
  static constexpr CmAttribute kAttribute = CmAttribute::kSidrReq;

  CommId request_id{};
  PKey pkey = kDefaultPKey;
  uint64_t service_id = 0;
  std::array<uint8_t, kSidrReqPrivateBytes> private_data{};

  friend bool operator==(const CmSidrReq&, const CmSidrReq&) = default;
};

struct CmSidrRep {
  static constexpr CmAttribute kAttribute = CmAttribute::kSidrRep;

  CommId request_id{};
  SidrStatus status = SidrStatus::kSuccess;
  uint8_t info_bytes = 0;  // at most kSidrRepInfoBytes is meaningful
  Qpn qpn{};
  uint64_t service_id = 0;
  Qkey qkey{};
  std::array<uint8_t, kSidrRepInfoBytes> info{};
  std::array<uint8_t, kSidrRepPrivateBytes> private_data{};

  friend bool operator==(const CmSidrRep&, const CmSidrRep&) = default;
};

[[nodiscard]] CmSidrReq ParseCmSidrReq(MadDataIn data) noexcept;
void BuildCmSidrReq(const CmSidrReq& req, MadDataOut data) noexcept;

// `info_bytes` is handed on as received: ParseCmMessage() refuses a message whose value exceeds the
// field.
[[nodiscard]] CmSidrRep ParseCmSidrRep(MadDataIn data) noexcept;
void BuildCmSidrRep(const CmSidrRep& rep, MadDataOut data) noexcept;

}  // namespace rdmad::wire
