#include "daemon/wire/cm/cm_rej.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct RejBytes {
  uint8_t local_comm_id_be[4];
  uint8_t remote_comm_id_be[4];
  uint8_t message;      // message rejected:2 | reserved:6
  uint8_t info_length;  // reject info length:7 | reserved:1
  uint8_t reason_be[2];
  uint8_t info[kRejInfoBytes];
  uint8_t private_data[kRejPrivateBytes];
};
static_assert(sizeof(RejBytes) == kMadDataBytes && alignof(RejBytes) == 1);

}  // namespace

const char* RejReasonName(RejReason reason) noexcept {
  // Indexed by reason; 0 is no reason.
  static constexpr std::array<const char*, 34> kNames = {
      "unknown",
      "no_qp",
      "no_eec",
      "no_resources",
      "timeout",
      "unsupported",
      "invalid_comm_id",
      "invalid_comm_instance",
      "invalid_service_id",
      "invalid_transport",
      "stale_connection",
      "rdc_not_exist",
      "invalid_gid",
      "invalid_lid",
      "invalid_sl",
      "invalid_traffic_class",
      "invalid_hop_limit",
      "invalid_packet_rate",
      "invalid_alt_gid",
      "invalid_alt_lid",
      "invalid_alt_sl",
      "invalid_alt_traffic_class",
      "invalid_alt_hop_limit",
      "invalid_alt_packet_rate",
      "port_cm_redirect",
      "port_redirect",
      "invalid_mtu",
      "insufficient_responder_resources",
      "consumer_defined",
      "invalid_rnr_retry",
      "duplicate_local_comm_id",
      "invalid_class_version",
      "invalid_flow_label",
      "invalid_alt_flow_label",
  };
  const auto index = static_cast<size_t>(reason);
  return index < kNames.size() ? kNames[index] : kNames[0];
}

CmRej ParseCmRej(MadDataIn data) noexcept {
  RejBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmRej rej;
  rej.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  rej.remote_comm_id = CommId(LoadBe32(bytes.remote_comm_id_be));
  rej.message = static_cast<CmMessageKind>(bytes.message >> 6);
  rej.info_bytes = bytes.info_length >> 1;
  rej.reason = static_cast<RejReason>(LoadBe16(bytes.reason_be));
  std::memcpy(rej.info.data(), bytes.info, kRejInfoBytes);
  std::memcpy(rej.private_data.data(), bytes.private_data, kRejPrivateBytes);
  return rej;
}

void BuildCmRej(const CmRej& rej, MadDataOut data) noexcept {
  RejBytes bytes;
  StoreBe32(bytes.local_comm_id_be, rej.local_comm_id.value());
  StoreBe32(bytes.remote_comm_id_be, rej.remote_comm_id.value());
  bytes.message = static_cast<uint8_t>(static_cast<uint8_t>(rej.message) << 6);
  bytes.info_length = static_cast<uint8_t>(rej.info_bytes << 1);
  StoreBe16(bytes.reason_be, static_cast<uint16_t>(rej.reason));
  std::memcpy(bytes.info, rej.info.data(), kRejInfoBytes);
  std::memcpy(bytes.private_data, rej.private_data.data(), kRejPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
