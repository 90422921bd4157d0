// RTU: the active side has seen the REP; the connection stands.
//
// Source: IBTA vol. 1, Communication Management, "RTU - Ready To Use".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"

namespace rdmad::wire {

inline constexpr size_t kRtuPrivateBytes = 224;

struct CmRtu {
  static constexpr CmAttribute kAttribute = CmAttribute::kRtu;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  std::array<uint8_t, kRtuPrivateBytes> private_data{};

  friend bool operator==(const CmRtu&, const CmRtu&) = default;
};

[[nodiscard]] CmRtu ParseCmRtu(MadDataIn data) noexcept;
void BuildCmRtu(const CmRtu& rtu, MadDataOut data) noexcept;

}  // namespace rdmad::wire
