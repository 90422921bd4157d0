// What a transport knows of a queue pair, of whatever type: where packets, timers and turns go.
//
// Connected QPs (RC, UC) are SoftQp, datagram QPs are UdQp. Each implements the few calls that the
// transport makes; `connected()` and `datagram()` serve those who look for a QP of one kind,
// without a cast that has to search. Thread: engine. Owner: the control side.
#pragma once

#include <cstdint>

#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/run_result.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class SoftQp;
class UdQp;

class TransportQp {
 public:
  TransportQp(const TransportQp&) = delete;
  TransportQp& operator=(const TransportQp&) = delete;

  // A packet to this QP's number, of any transport, from anybody, in any state.
  virtual void OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs now) noexcept = 0;
  virtual void OnTimer(TimeNs now) noexcept = 0;
  // Its turn, since it stood in the active list.
  virtual RunResult Run(uint32_t budget_bytes, TimeNs now) noexcept = 0;
  // The shared receive queue, which had none for this QP, has a receive again. False: nobody waits for it any more.
  virtual bool OnReceivePosted() noexcept = 0;

  // This, if it is of that kind; else null.
  SoftQp* connected() const noexcept { return connected_; }
  UdQp* datagram() const noexcept { return datagram_; }

 protected:
  explicit TransportQp(SoftQp* self) noexcept : connected_(self) {}
  explicit TransportQp(UdQp* self) noexcept : datagram_(self) {}
  ~TransportQp() = default;

 private:
  SoftQp* const connected_ = nullptr;
  UdQp* const datagram_ = nullptr;
};

}  // namespace rdmad::soft
