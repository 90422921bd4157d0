// What is known about one connection: what its messages say, and what its QP will be set to.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/types.h"
#include "daemon/wire/cm/cm_fields.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {

struct CmFacts {
  wire::CommId local_id{};
  wire::CommId remote_id{};  // 0 until the peer has named one
  uint64_t transaction_id = 0;

  Flow flow;
  uint32_t sgid_index = 0;  // of flow.local on its device
  uint64_t node_guid = 0;   // of that device
  device::Mtu path_mtu = device::Mtu::k1024;

  device::QpType qp_type = device::QpType::kRc;
  wire::Qpn local_qpn{};
  wire::Qpn remote_qpn{};
  wire::Psn local_psn{};   // with which the peer begins: our rq_psn
  wire::Psn remote_psn{};  // with which we begin

  // From this side's point of view; messages carry them from the sender's.
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
  uint8_t ack_timeout = 0;  // code; for our QP, unless the application has said otherwise
};

// The ACK timeout (code) for a path whose round trip takes 2^(path_timeout) and a peer that answers
// within 2^(ack_delay): the code of their sum. Source: IBTA vol. 1, Communication Management, Local
// ACK Timeout.
[[nodiscard]] uint8_t AckTimeoutCode(uint8_t path_timeout, uint8_t ack_delay) noexcept;

// A timeout that a peer asks for, within what is sane: 0 would let a work request wait for ever, 31
// for hours.
[[nodiscard]] uint8_t BoundedAckTimeout(uint8_t wanted, uint8_t fallback) noexcept;

// Attributes and mask as rdma_init_qp_attr gives them for a connected QP, RC or UC. Errors:
// InvalidArgument (a state other than INIT, RTR, RTS).
absl::StatusOr<device::QpAttr> MakeQpAttr(const CmFacts& facts, device::QpState state,
                                          uint8_t min_rnr_timer);

// Where the address stands in the device's GID table; 0 if it is not there (any more).
[[nodiscard]] uint32_t SgidIndexOf(const device::Device& device, const IpAddress& address);

}  // namespace rdmad::soft
