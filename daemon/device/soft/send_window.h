// How many bytes a requester may have in flight: additive increase, multiplicative decrease, with a
// floor.
//
// Until the first congestion the window doubles per round trip; from then on it grows by two
// packets per round trip and falls to seven tenths, as TCP's does (RFC 9438), with each round in
// which something was lost or a router marked something. It never falls below four packets: with
// go-back-N that many make steady progress at any loss that is bearable at all. After a timeout one
// packet goes alone, until the peer shows that it is there; then the window counts again.
//
// "Cost" is payload plus a constant per packet, so that small packets count for what they really
// take. Thread: engine. Owner: the requester.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rdmad::soft {

inline constexpr uint32_t kPacketOverheadBytes = 256;

class SendWindow {
 public:
  void Reset(uint32_t initial_bytes, uint32_t max_bytes, uint32_t mtu_bytes) noexcept {
    packet_cost_ = mtu_bytes + kPacketOverheadBytes;
    max_ = std::max(max_bytes, kMinPackets * packet_cost_);
    window_ = std::clamp(initial_bytes, kMinPackets * packet_cost_, max_);
    congested_before_ = false;
    probing_ = false;
  }

  // Bytes that may be in flight. Whoever has nothing in flight may send one packet, whatever this
  // says.
  uint32_t limit() const noexcept { return probing_ ? packet_cost_ : window_; }
  uint32_t packet_cost() const noexcept { return packet_cost_; }

  // `in_flight_bytes` before this acknowledgement: a window that was not used has not been tested
  // and does not grow.
  void OnAcked(uint64_t acked_bytes, uint64_t in_flight_bytes) noexcept {
    probing_ = false;
    if (in_flight_bytes < window_ / 2) return;
    uint64_t growth = acked_bytes;
    if (congested_before_) growth = std::max<uint64_t>(1, acked_bytes * 2 * packet_cost_ / window_);
    window_ = static_cast<uint32_t>(std::min<uint64_t>(max_, window_ + growth));
  }

  // A round trip in which something was lost or marked. The caller says it once per round.
  void OnCongestion() noexcept {
    congested_before_ = true;
    window_ = std::max(window_ / 10 * 7, kMinPackets * packet_cost_);
  }

  // The peer has been silent: send one packet and wait.
  void OnSilence() noexcept { probing_ = true; }

 private:
  static constexpr uint32_t kMinPackets = 4;

  uint32_t packet_cost_ = kPacketOverheadBytes;
  uint32_t max_ = 0;
  uint32_t window_ = 0;
  bool congested_before_ = false;
  bool probing_ = false;
};

}  // namespace rdmad::soft
