// The packet that carries a MAD: a UD SEND_ONLY from QP 1 to QP 1, with QP 1's well-known Q_Key.
//
// Source: IBTA vol. 1, Management Model, General Services Interface; RoCEv2 Annex A17.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/wire/cm/mad.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/packet.h"

namespace rdmad::wire {

// UDP payload of every CM packet (UDP length 288).
inline constexpr size_t kCmPacketBytes = UdpPayloadBytes(Opcode::kUdSendOnly, kMadBytes);
static_assert(kCmPacketBytes == 280);

// Header fields of a packet from QP 1 to QP 1. `psn` is the sending QP 1's own counter.
[[nodiscard]] PacketFields CmPacketFields(Psn psn, PKey pkey = kDefaultPKey) noexcept;

// Is this packet for QP 1, of the right opcode, Q_Key and size to hold a MAD? What is in it is not
// looked at.
[[nodiscard]] bool IsCmPacket(const PacketView& packet) noexcept;

// Writes a whole CM packet, ICRC included (for IPv4 id 0), ready for sendmsg.
void BuildCmPacket(const IcrcFlow& flow, Psn psn, MadIn mad,
                   std::span<uint8_t, kCmPacketBytes> out) noexcept;

}  // namespace rdmad::wire
