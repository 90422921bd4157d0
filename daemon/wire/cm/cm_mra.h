// MRA: "your message arrived, the answer takes longer": the receiver of a REQ or REP asks for more
// time.
//
// Source: IBTA vol. 1, Communication Management, "MRA - Message Receipt Acknowledgement".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"

namespace rdmad::wire {

inline constexpr size_t kMraPrivateBytes = 222;

struct CmMra {
  static constexpr CmAttribute kAttribute = CmAttribute::kMra;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  CmMessageKind message = CmMessageKind::kReq;  // what is acknowledged
  uint8_t service_timeout = 0;                  // 5 bits, code of CmTimeout
  std::array<uint8_t, kMraPrivateBytes> private_data{};

  friend bool operator==(const CmMra&, const CmMra&) = default;
};

[[nodiscard]] CmMra ParseCmMra(MadDataIn data) noexcept;
// Values wider than their field are cut to it.
void BuildCmMra(const CmMra& mra, MadDataOut data) noexcept;

}  // namespace rdmad::wire
