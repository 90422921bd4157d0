// The ICRC of packets that follow one another: those of a batch have the same lengths and, but for
// the PSN, the same BTH, so the CRC over pseudo headers and the first eight bytes of the BTH is
// worked out once and stepped over the other four. A CRC's cost for some 80 bytes is mostly that of
// the call; this takes a fifth of it.
//
// Thread: one at a time. Owner: whoever sends or receives the batch, usually on the stack; the flow
// outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/wire/icrc.h"

namespace rdmad::wire {

class IcrcRun {
 public:
  explicit IcrcRun(const IcrcFlow& flow) noexcept : flow_(flow) {}

  // As IcrcFlow::Begin() and IcrcFlow::Compute().
  [[nodiscard]] uint32_t Begin(size_t udp_payload_bytes, std::span<const uint8_t> head) noexcept;
  [[nodiscard]] uint32_t Compute(std::span<const uint8_t> icrc_input) noexcept {
    return Begin(icrc_input.size() + sizeof(uint32_t), icrc_input);
  }

  [[nodiscard]] const IcrcFlow& flow() const noexcept { return flow_; }

 private:
  const IcrcFlow& flow_;
  size_t size_ = 0;         // of the packets that `crc_` is for; 0: none
  uint64_t bth_start_ = 0;  // their first eight bytes
  uint32_t crc_ = 0;
};

}  // namespace rdmad::wire
