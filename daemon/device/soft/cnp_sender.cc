#include "daemon/device/soft/cnp_sender.h"

#include <array>

namespace rdmad::soft {

void CnpSender::OnMarked(TimeNs now) noexcept {
  if (!qp_.core.config.ecn || now < quiet_until_) return;
  quiet_until_ = now + kCnpIntervalNs;
  due_ = true;
  qp_.Wake();
}

bool CnpSender::Run(RunResult* result) noexcept {
  if (!due_) return true;
  static constexpr std::array<uint8_t, wire::kCnpReservedBytes> kReserved{};
  // sendmsg does not write to what it sends, but iovec has no const.
  const iovec payload{const_cast<uint8_t*>(kReserved.data()), kReserved.size()};
  TxPacket packet{.fields = {}, .payload = {&payload, 1}, .payload_bytes = kReserved.size()};
  packet.fields.opcode = wire::Opcode::kCnp;
  packet.fields.becn = true;
  packet.fields.dest_qpn = wire::Qpn(qp_.attr.dest_qpn);
  Flow flow = qp_.flow;
  flow.ecn = kNotEct;
  if (qp_.core.tx->Send(flow, {&packet, 1}) == 0) {
    Count(qp_.core.counters.tx_blocked);
    return false;
  }
  due_ = false;
  Count(qp_.core.counters.tx_packets);
  Count(qp_.core.counters.cnp_sent);
  result->spent_bytes += kPacketOverheadBytes;
  ++result->work;
  return true;
}

}  // namespace rdmad::soft
