#include "daemon/wire/cm/cm_rep.h"

#include <cstring>

#include "daemon/wire/bytes.h"

namespace rdmad::wire {
namespace {

struct RepBytes {
  uint8_t local_comm_id_be[4];
  uint8_t remote_comm_id_be[4];
  uint8_t local_qkey_be[4];
  uint8_t local_qpn_be[3];
  uint8_t reserved1;
  uint8_t local_eecn_be[3];
  uint8_t reserved2;
  uint8_t starting_psn_be[3];
  uint8_t reserved3;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t delay_failover_flow;  // target ACK delay:5 | failover accepted:2 | flow control:1
  uint8_t rnr_srq;              // RNR retry count:3 | SRQ:1 | reserved:4
  uint8_t local_ca_guid_be[8];
  uint8_t private_data[kRepPrivateBytes];
};
static_assert(sizeof(RepBytes) == kMadDataBytes && alignof(RepBytes) == 1);
static_assert(offsetof(RepBytes, local_ca_guid_be) == 28);

}  // namespace

CmRep ParseCmRep(MadDataIn data) noexcept {
  RepBytes bytes;
  std::memcpy(&bytes, data.data(), sizeof(bytes));
  CmRep rep;
  rep.local_comm_id = CommId(LoadBe32(bytes.local_comm_id_be));
  rep.remote_comm_id = CommId(LoadBe32(bytes.remote_comm_id_be));
  rep.local_qkey = Qkey(LoadBe32(bytes.local_qkey_be));
  rep.local_qpn = Qpn(LoadBe24(bytes.local_qpn_be));
  rep.local_eecn = LoadBe24(bytes.local_eecn_be);
  rep.starting_psn = Psn(LoadBe24(bytes.starting_psn_be));
  rep.responder_resources = bytes.responder_resources;
  rep.initiator_depth = bytes.initiator_depth;
  rep.target_ack_delay = bytes.delay_failover_flow >> 3;
  rep.failover_accepted = bytes.delay_failover_flow >> 1 & 3;
  rep.end_to_end_flow_control = (bytes.delay_failover_flow & 1) != 0;
  rep.rnr_retry_count = bytes.rnr_srq >> 5;
  rep.srq = (bytes.rnr_srq & 0x10) != 0;
  rep.local_ca_guid = LoadBe64(bytes.local_ca_guid_be);
  std::memcpy(rep.private_data.data(), bytes.private_data, kRepPrivateBytes);
  return rep;
}

void BuildCmRep(const CmRep& rep, MadDataOut data) noexcept {
  RepBytes bytes{};
  StoreBe32(bytes.local_comm_id_be, rep.local_comm_id.value());
  StoreBe32(bytes.remote_comm_id_be, rep.remote_comm_id.value());
  StoreBe32(bytes.local_qkey_be, rep.local_qkey.value());
  StoreBe24(bytes.local_qpn_be, rep.local_qpn.value());
  StoreBe24(bytes.local_eecn_be, rep.local_eecn);
  StoreBe24(bytes.starting_psn_be, rep.starting_psn.value());
  bytes.responder_resources = rep.responder_resources;
  bytes.initiator_depth = rep.initiator_depth;
  bytes.delay_failover_flow =
      static_cast<uint8_t>(rep.target_ack_delay << 3 | (rep.failover_accepted & 3) << 1 |
                           (rep.end_to_end_flow_control ? 1 : 0));
  bytes.rnr_srq = static_cast<uint8_t>(rep.rnr_retry_count << 5 | (rep.srq ? 0x10 : 0));
  StoreBe64(bytes.local_ca_guid_be, rep.local_ca_guid);
  std::memcpy(bytes.private_data, rep.private_data.data(), kRepPrivateBytes);
  std::memcpy(data.data(), &bytes, sizeof(bytes));
}

}  // namespace rdmad::wire
