#include "daemon/wire/icrc_run.h"

#include <cstring>

#include "daemon/wire/bytes.h"
#include "daemon/wire/gf2.h"
#include "daemon/wire/opcode.h"

namespace rdmad::wire {
namespace {

constexpr size_t kStartBytes = 8;  // up to the acknowledge request
static_assert(kStartBytes + sizeof(uint32_t) == kBthBytes);

// A CRC continued over four bytes: one product. The inversions are those of IcrcUpdate().
uint32_t StepFourBytes(uint32_t crc, const uint8_t* bytes) noexcept {
  static constexpr uint32_t kX32 = gf2::PowerOfX(32);
  return ~gf2::Multiply(~crc ^ LoadLe32(bytes), kX32);
}

}  // namespace

uint32_t IcrcRun::Begin(size_t udp_payload_bytes, std::span<const uint8_t> head) noexcept {
  // With a few bytes more, one call for all of it costs less than one for the rest.
  if (head.size() > kBthBytes && head.size() <= kMaxHeaderBytes) {
    return flow_.Begin(udp_payload_bytes, head);
  }
  uint64_t bth_start;
  std::memcpy(&bth_start, head.data(), kStartBytes);
  if (size_ != udp_payload_bytes || bth_start_ != bth_start) {
    size_ = udp_payload_bytes;
    bth_start_ = bth_start;
    crc_ = flow_.Begin(udp_payload_bytes, head.first(kStartBytes));
  }
  const uint32_t crc = StepFourBytes(crc_, head.data() + kStartBytes);
  return head.size() > kBthBytes ? IcrcUpdate(crc, head.subspan(kBthBytes)) : crc;
}

}  // namespace rdmad::wire
