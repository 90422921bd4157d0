// The packets that one QP sends in one go: storage for up to 64 of them and the slices of their
// payload.
//
// Thread: engine. Owner: the transport, which has one; whoever builds a batch clears it, fills it
// and sends it before anybody else has a turn.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/sge_cursor.h"
#include "daemon/wire/opcode.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class TxBatch {
 public:
  static constexpr uint32_t kMaxPackets = 64;

  void Clear() noexcept {
    packet_count_ = 0;
    slice_count_ = 0;
    payload_bytes_ = 0;
  }
  bool HasRoom() const noexcept {
    return packet_count_ < kMaxPackets && slice_count_ + kMaxSge <= kMaxSlices;
  }
  // How many full packets make whole messages of the carrier: a batch of those leaves no crumbs,
  // whose messages would cost as much as full ones.
  static constexpr uint32_t WholePackets(uint32_t mtu_bytes) noexcept {
    const uint32_t packet_bytes = mtu_bytes + wire::kBthBytes + wire::kIcrcBytes;
    const uint32_t per_message = kMaxTxMessageBytes / packet_bytes;
    return per_message >= kMaxPackets ? kMaxPackets : kMaxPackets / per_message * per_message;
  }
  size_t size() const noexcept { return packet_count_; }
  uint64_t payload_bytes() const noexcept { return payload_bytes_; }
  std::span<const TxPacket> packets() const noexcept { return {packets_.data(), packet_count_}; }

  // A new packet without payload, whose header the caller fills. There must be room.
  wire::PacketFields& Add() noexcept {
    TxPacket& packet = packets_[packet_count_++];
    packet = {};
    return packet.fields;
  }

  // Gives the newest packet its payload. False, and the packet is taken back, if a key does not
  // hold.
  [[nodiscard]] bool AddPayload(const SgeList& list, SgeCursor& cursor, const MrTable& mrs,
                                uint32_t bytes) noexcept {
    TxPacket& packet = packets_[packet_count_ - 1];
    const size_t first_slice = slice_count_;
    for (uint32_t left = bytes; left > 0;) {
      const std::span<std::byte> run = cursor.Next(list, mrs, left);
      if (run.empty()) {
        slice_count_ = first_slice;
        --packet_count_;
        return false;
      }
      slices_[slice_count_++] = {run.data(), run.size()};
      left -= static_cast<uint32_t>(run.size());
    }
    packet.payload = {&slices_[first_slice], slice_count_ - first_slice};
    packet.payload_bytes = bytes;
    payload_bytes_ += bytes;
    return true;
  }

 private:
  static constexpr size_t kMaxSlices = 256;

  size_t packet_count_ = 0;
  size_t slice_count_ = 0;
  uint64_t payload_bytes_ = 0;
  std::array<TxPacket, kMaxPackets> packets_;
  std::array<iovec, kMaxSlices> slices_;
};

}  // namespace rdmad::soft
