// DREQ: one side ends the connection.
//
// Source: IBTA vol. 1, Communication Management, "DREQ - Request for communication Release".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"
#include "daemon/wire/ids.h"

namespace rdmad::wire {

inline constexpr size_t kDreqPrivateBytes = 220;

struct CmDreq {
  static constexpr CmAttribute kAttribute = CmAttribute::kDreq;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qpn remote_qpn{};  // the receiver's QP; one that does not fit the ids is answered but changes
                     // nothing
  std::array<uint8_t, kDreqPrivateBytes> private_data{};

  friend bool operator==(const CmDreq&, const CmDreq&) = default;
};

[[nodiscard]] CmDreq ParseCmDreq(MadDataIn data) noexcept;
void BuildCmDreq(const CmDreq& dreq, MadDataOut data) noexcept;

}  // namespace rdmad::wire
