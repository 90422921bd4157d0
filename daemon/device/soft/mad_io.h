// Where the CM gets its MADs from and sends them to: QP 1 of every soft device, all of them
// together. By the same way it hears of the first data of connected QPs.
//
// A MAD is one UD SEND_ONLY packet of exactly 256 bytes. The wire side (mad_ring, udp_port) has
// checked ICRC, form, the destination QP, the Q_Key and the size of what Receive() yields; nothing
// inside the MAD is trusted. Delivery is that of UDP: MADs get lost, doubled, reordered. The CM's
// retries make up for it.
//
// Thread: control, all of it. Owner: whoever made it; it outlives the CM.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/wire/cm/mad.h"
#include "daemon/wire/ids.h"

namespace rdmad::soft {

using wire::kMadBytes;

struct ReceivedMad {
  // If this is not 0 there is no MAD: this QP of ours, which is connected to `src_qpn` at
  // flow.remote, has just taken the first request from there.
  wire::Qpn first_data_of{};
  Flow flow;  // flow.local: the address of ours that it was sent to; flow.remote: the sender's
  wire::Qpn src_qpn{};  // 1 unless the peer redirects its CM; answers go to QP 1
  wire::PKey pkey{};
  std::array<uint8_t, kMadBytes> mad;
};

class MadIo {
 public:
  virtual ~MadIo() = default;

  // Sends `mad` from QP 1 of `flow.local` to QP 1 of `flow.remote`. False if it could not even be
  // handed to the kernel (no such local address, socket full, no route): the caller may treat that
  // as a loss, its retry timer does the rest. True promises nothing. Never blocks. Sending to an
  // address of this same host, also `flow.local` itself, works.
  virtual bool SendMad(const Flow& flow, std::span<const uint8_t, kMadBytes> mad) noexcept = 0;

  // Takes the oldest MAD, or word of first data, that has arrived. False: none left.
  virtual bool Receive(ReceivedMad* out) noexcept = 0;

  // Readable (level-triggered) while Receive() may have something.
  [[nodiscard]] virtual int poll_fd() const noexcept = 0;

  // Is this the address (with its scope) of one of our soft devices, so that a MAD can be sent from
  // it and its QPs live in this daemon?
  [[nodiscard]] virtual bool IsLocal(const IpAddress& address) const noexcept = 0;
};

}  // namespace rdmad::soft
