// How datagrams for QP 1, and word of QPs' first data, get from an engine to the control thread: a
// bounded ring of MADs and a wake-up.
//
// The engine calls OnPacket() for every packet to QP 1; what is not a proper CM datagram is counted
// and dropped there, and so is what finds the ring full: the engine never waits for control, and
// the CM's retries make up for the loss. Flush(), once per turn, wakes control if anything was put
// in.
//
// Two sides: see each method. Owner: SoftMadIo, which outlives the engine's data path.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/device/soft/mad_io.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/udp_counters.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class MadRing {
 public:
  static constexpr uint32_t kDefaultCapacity = 1024;

  // `wake_fd` is an eventfd, kept by the caller. `capacity` is a power of two.
  explicit MadRing(int wake_fd, uint32_t capacity = kDefaultCapacity);

  // Engine thread.
  void OnPacket(const Flow& flow, const wire::PacketView& packet) noexcept;
  // Lost without a trace if the ring is full: the CM's retries make up for that, too.
  void OnFirstData(const Flow& flow, uint32_t qpn, uint32_t peer_qpn) noexcept;
  void Flush() noexcept;

  // Control thread. False: empty.
  bool Pop(ReceivedMad* out) noexcept;

  // Any thread.
  void AppendCounters(std::vector<device::CounterValue>* out) const;

 private:
  // The slot to fill next; null: the ring is full. Publish() hands it over.
  ReceivedMad* Claim() noexcept;
  void Publish() noexcept;

  const int wake_fd_;
  const uint32_t capacity_;
  const std::unique_ptr<ReceivedMad[]> slots_;

  // Indices run free and wrap modulo 2^32.
  alignas(64) std::atomic<uint32_t> tail_{0};  // next slot to fill; the engine writes
  bool unflushed_ = false;
  UdpCounter received_;
  UdpCounter drop_malformed_;
  UdpCounter drop_full_;
  alignas(64) std::atomic<uint32_t> head_{0};  // next slot to read; control writes
};

}  // namespace rdmad::soft
