#include "daemon/wire/cm/cm_packet.h"

#include <algorithm>
#include <cstring>

namespace rdmad::wire {

PacketFields CmPacketFields(Psn psn, PKey pkey) noexcept {
  PacketFields fields;
  fields.opcode = Opcode::kUdSendOnly;
  fields.pkey = pkey;
  fields.dest_qpn = kGsiQpn;
  fields.psn = psn;
  fields.deth = {kGsiQkey, kGsiQpn};
  return fields;
}

bool IsCmPacket(const PacketView& packet) noexcept {
  return packet.opcode == Opcode::kUdSendOnly && packet.dest_qpn == kGsiQpn &&
         packet.deth.qkey == kGsiQkey && packet.payload.size() == kMadBytes;
}

void BuildCmPacket(const IcrcFlow& flow, Psn psn, MadIn mad,
                   std::span<uint8_t, kCmPacketBytes> out) noexcept {
  std::array<uint8_t, kMaxHeaderBytes> head;
  const size_t head_bytes = BuildHeaders(CmPacketFields(psn), kMadBytes, head);
  std::memcpy(out.data(), head.data(), head_bytes);
  std::copy(mad.begin(), mad.end(), out.begin() + static_cast<ptrdiff_t>(head_bytes));
  StoreIcrc(flow.Compute(out.first<kCmPacketBytes - kIcrcBytes>()), out.last<kIcrcBytes>());
}

}  // namespace rdmad::wire
