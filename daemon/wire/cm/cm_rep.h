// REP: the passive side accepts a REQ and says how to reach its QP.
//
// Source: IBTA vol. 1, Communication Management, "REP - Reply to Request for Communication".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"
#include "daemon/wire/ids.h"

namespace rdmad::wire {

inline constexpr size_t kRepPrivateBytes = 196;

struct CmRep {
  static constexpr CmAttribute kAttribute = CmAttribute::kRep;

  CommId local_comm_id{};
  CommId remote_comm_id{};
  Qkey local_qkey{};
  Qpn local_qpn{};
  uint32_t local_eecn = 0;  // 24 bits, RD only
  Psn starting_psn{};       // of what the receiver of this message will send: the sender's rq_psn
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t target_ack_delay = 0;   // 5 bits, code of CmTimeout
  uint8_t failover_accepted = 0;  // 2 bits: 0 alternate path accepted, 1 not supported, 2 rejected
  bool end_to_end_flow_control = false;
  uint8_t rnr_retry_count = 0;  // 3 bits, 7 = for ever
  bool srq = false;
  uint64_t local_ca_guid = 0;
  std::array<uint8_t, kRepPrivateBytes> private_data{};

  friend bool operator==(const CmRep&, const CmRep&) = default;
};

[[nodiscard]] CmRep ParseCmRep(MadDataIn data) noexcept;
// Values wider than their field are cut to it.
void BuildCmRep(const CmRep& rep, MadDataOut data) noexcept;

}  // namespace rdmad::wire
