// DREP: the answer to a DREQ; both sides enter time-wait.
//
// Source: IBTA vol. 1, Communication Management, "DREP - Reply to Request for communication
// Release".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"

namespace rdmad::wire {

inline constexpr size_t kDrepPrivateBytes = 224;

struct CmDrep {
  static constexpr CmAttribute kAttribute = CmAttribute::kDrep;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::array<uint8_t, kDrepPrivateBytes> private_data{};

  friend bool operator==(const CmDrep&, const CmDrep&) = default;
};

[[nodiscard]] CmDrep ParseCmDrep(MadDataIn data) noexcept;
void BuildCmDrep(const CmDrep& drep, MadDataOut data) noexcept;

}  // namespace rdmad::wire
