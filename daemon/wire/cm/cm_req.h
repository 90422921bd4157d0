// REQ: the active side asks for a connection.
//
// It says where the service is wanted (service id), how to reach the sender's QP (QPN, starting
// PSN, path), and what the connection shall be like (retries, timeouts, reads in flight, MTU). RoCE
// has no LIDs, rates or service levels of its own; what the kernel puts there is named below, so
// that our REQ looks like everybody's.
// Source: IBTA vol. 1, Communication Management, "REQ - Request for Communication".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/base/ip_address.h"
#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/cm/mad.h"
#include "daemon/wire/ids.h"

namespace rdmad::wire {

inline constexpr size_t kReqPrivateBytes = 92;

enum class CmTransport : uint8_t { kRc = 0, kUc = 1, kRd = 2, kExtended = 3 };

// One path between two ports, as the sender sees it.
struct CmPath {
  uint16_t local_lid = 0;
  uint16_t remote_lid = 0;
  Gid local_gid{};
  Gid remote_gid{};
  uint32_t flow_label = 0;  // 20 bits
  uint8_t packet_rate = 0;  // 6 bits, code
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint8_t service_level = 0;  // 4 bits
  bool subnet_local = false;
  uint8_t local_ack_timeout = 0;  // 5 bits, code of CmTimeout

  friend bool operator==(const CmPath&, const CmPath&) = default;
};

struct CmReq {
  static constexpr CmAttribute kAttribute = CmAttribute::kReq;

  CommId local_comm_id{};
  uint64_t service_id = 0;
  uint64_t local_ca_guid = 0;
  Qkey local_qkey{};
  Qpn local_qpn{};
  uint8_t responder_resources = 0;         // reads and atomics that the sender answers at a time
  uint32_t local_eecn = 0;                 // 24 bits, RD only
  uint8_t initiator_depth = 0;             // reads and atomics that the sender wants in flight
  uint32_t remote_eecn = 0;                // 24 bits, RD only
  uint8_t remote_cm_response_timeout = 0;  // 5 bits: how soon the peer must answer
  CmTransport transport = CmTransport::kRc;
  bool end_to_end_flow_control = false;
  Psn starting_psn{};  // of what the receiver of this message will send: the sender's rq_psn
  uint8_t local_cm_response_timeout = 0;  // 5 bits: how soon the sender will answer
  uint8_t retry_count = 0;                // 3 bits
  PKey pkey = kDefaultPKey;
  uint8_t path_mtu = 0;  // 4 bits: 1 = 256 ... 5 = 4096
  bool rdc_exists = false;
  uint8_t rnr_retry_count = 0;  // 3 bits, 7 = for ever
  uint8_t max_cm_retries = 0;   // 4 bits: how often the peer may repeat a message
  bool srq = false;
  uint8_t extended_transport = 0;  // 3 bits
  CmPath primary{};
  CmPath alternate{};  // all zero: none
  std::array<uint8_t, kReqPrivateBytes> private_data{};

  friend bool operator==(const CmReq&, const CmReq&) = default;
};

[[nodiscard]] CmReq ParseCmReq(MadDataIn data) noexcept;
// Values wider than their field are cut to it.
void BuildCmReq(const CmReq& req, MadDataOut data) noexcept;

}  // namespace rdmad::wire
