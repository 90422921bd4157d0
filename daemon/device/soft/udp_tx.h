// The sending half of a UDP port: packets of the transport in, as few system calls as possible out.
//
// A packet's payload is copied, once, beside its headers: what the ICRC is computed of must be what
// leaves, and the application may write to its memory meanwhile (a counter that peers read, a lock).
// sendmsg would read the pool a second time, later, and every packet that had changed in between
// would be dropped by the peer, for good where it changes all the time. The copy is read from the
// cache again, by the ICRC and the kernel, and makes a message one piece:
//
//   arena:   [head 0, payload 0, tail 0][head 1, payload 1, tail 1] ...
//
// Runs of packets of one size, with a shorter one at the end at most, go as one message by
// UDP_SEGMENT: up to 64 packets and 65,507 bytes. Up to 64 packets, batched or single, go in one
// sendmmsg. The ICRC of a batch's packet i is computed for IPv4 identification i (wire/icrc_id.h).
//
// When the kernel refuses a batch with EIO or EINVAL (a device without checksum offload on older
// kernels, for one), the same packets are built again as singles. If a single is accepted, this
// port sends singles for good; if it is not, the batching was not to blame and stays on.
//
// A full socket buffer is told to the caller. Every other error is a packet lost: it is counted by
// cause, and the transport's retries find out.
//
// Thread: engine. Owner: UdpPort. Nothing allocates after construction. Source: udp(7); limits
// measured on 6.1 to 6.18.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/udp_counters.h"
#include "daemon/device/soft/udp_peer.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/icrc_run.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class UdpTx {
 public:
  static constexpr size_t kMaxBatchPackets = 64;   // older kernels' UDP_MAX_SEGMENTS
  static constexpr size_t kMaxBatchBytes = kMaxTxMessageBytes;
  static constexpr size_t kMaxStagedPackets = 64;  // per sendmmsg
  static constexpr size_t kMaxPayloadBytes = 4096;  // the largest path MTU

  // `fd` and `counters` outlive this object. Packets leave from and go to `port`.
  UdpTx(int fd, uint16_t port, UdpCounters* counters) noexcept;

  // See PacketTx::Send().
  [[nodiscard]] size_t Send(const Flow& flow, std::span<const TxPacket> packets) noexcept;

  [[nodiscard]] bool batching() const noexcept { return batching_ != Batching::kOff; }
  // From now on singles only. For tests and for networks that handle batches badly.
  void DisableBatching() noexcept { batching_ = Batching::kOff; }

 private:
  enum class Batching : uint8_t {
    kOn,
    kProbing,
    kOff
  };  // kProbing: refused once, singles are being tried
  enum class Outcome : uint8_t { kDone, kFull, kBuildAgain };

  struct Message {
    uint16_t packets;
    uint16_t segment_bytes;  // UDP payload of all packets but perhaps the last
    uint32_t bytes;
    bool closed;  // ends with a shorter packet: nothing may follow
  };

  // Builds messages of the first packets until something is full. Returns how many packets that
  // were.
  size_t Stage(const UdpPeer& peer, wire::IcrcRun& icrc,
               std::span<const TxPacket> packets) noexcept;
  void StagePacket(wire::IcrcRun& icrc, const TxPacket& packet,
                   size_t udp_payload_bytes) noexcept;
  void StartMessage(const UdpPeer& peer, size_t udp_payload_bytes) noexcept;
  void FinishMessages() noexcept;
  [[nodiscard]] bool FitsMessage(size_t udp_payload_bytes) const noexcept;
  [[nodiscard]] uint32_t IdTerm(const wire::IcrcFlow& icrc, size_t udp_payload_bytes) noexcept;

  // Sends what is staged; adds the packets that are done with, sent or lost, to `*taken`.
  Outcome Flush(size_t* taken) noexcept;
  void CountSent(std::span<const Message> messages, size_t* taken) noexcept;
  Outcome OnSendError(int error, const Message& message) noexcept;
  void CountLost(int error, uint32_t packets) noexcept;

  static constexpr size_t kMaxPacketBytes =
      wire::kMaxHeaderBytes + kMaxPayloadBytes + wire::kMaxTrailerBytes;
  static constexpr size_t kControlBytes = UdpPeer::kMaxControlBytes + UdpPeer::kIntControlBytes;

  const int fd_;
  const uint16_t port_;
  UdpCounters* const counters_;
  Batching batching_ = Batching::kOn;

  size_t message_count_ = 0;
  size_t staged_packets_ = 0;
  size_t arena_bytes_ = 0;
  wire::GsoIcrcTerms terms_;  // of the size below
  size_t terms_bytes_ = 0;
  std::array<Message, kMaxStagedPackets> messages_;
  std::array<mmsghdr, kMaxStagedPackets> headers_;
  std::array<iovec, kMaxStagedPackets> pieces_;  // one a message
  std::array<uint8_t, kMaxStagedPackets * kMaxPacketBytes> arena_;
  alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kMaxStagedPackets> controls_;
};

}  // namespace rdmad::soft
