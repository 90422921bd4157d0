#include "daemon/wire/icrc.h"

#include <isa-l/crc.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "daemon/wire/bytes.h"
#include "daemon/wire/opcode.h"

namespace rdmad::wire {
namespace {

constexpr size_t kIpv4Bytes = 20;
constexpr size_t kIpv6Bytes = 40;
constexpr size_t kUdpBytes = 8;
constexpr uint8_t kIpProtocolUdp = 17;
constexpr size_t kBthMaskedOffset = 4;
constexpr uint8_t kDontFragment = 0x40;  // in the first byte of flags and fragment offset

// Lengths are filled in per packet. TOS, TTL and header checksum are masked.
void MakeIpv4Header(uint8_t* ip, const IpAddress& source, const IpAddress& destination) {
  std::memset(ip, 0, kIpv4Bytes);
  ip[0] = 0x45;  // version 4, five words: RoCE packets carry no IP options
  ip[1] = 0xff;
  ip[6] = kDontFragment;
  ip[8] = 0xff;
  ip[9] = kIpProtocolUdp;
  ip[10] = ip[11] = 0xff;
  StoreBe32(ip + 12, source.v4());
  StoreBe32(ip + 16, destination.v4());
}

// Traffic class, flow label and hop limit are masked.
void MakeIpv6Header(uint8_t* ip, const IpAddress& source, const IpAddress& destination) {
  std::memset(ip, 0, kIpv6Bytes);
  ip[0] = 0x6f;
  ip[1] = ip[2] = ip[3] = 0xff;
  ip[6] = kIpProtocolUdp;
  ip[7] = 0xff;
  std::memcpy(ip + 8, source.bytes().data(), source.bytes().size());
  std::memcpy(ip + 24, destination.bytes().data(), destination.bytes().size());
}

// ISA-L's AVX-512 routine returns with the upper halves of the vector registers in use, and from
// then on every SSE instruction (memcpy's, the product in gf2.cc, the compiler's own) has to keep
// them: the work per packet around the CRC took twice as long. Clearing them costs a nanosecond.
#if defined(__x86_64__)
const bool kHasAvx = __builtin_cpu_supports("avx") != 0;

__attribute__((target("avx"))) void ClearUpperHalves() noexcept {
  _mm256_zeroupper();
}

void AfterVectorCode() noexcept {
  if (kHasAvx) ClearUpperHalves();
}
#else
void AfterVectorCode() noexcept {}
#endif

}  // namespace

uint32_t IcrcUpdate(uint32_t crc, std::span<const uint8_t> bytes) noexcept {
  const uint32_t result = crc32_gzip_refl(crc, bytes.data(), bytes.size());
  AfterVectorCode();
  return result;
}

void StoreIcrc(uint32_t crc, std::span<uint8_t, 4> out) noexcept {
  StoreLe32(out.data(), crc);
}

uint32_t LoadIcrc(std::span<const uint8_t, 4> bytes) noexcept {
  return LoadLe32(bytes.data());
}

IcrcFlow::IcrcFlow(const IpAddress& source, const IpAddress& destination, uint16_t source_port,
                   uint16_t destination_port) noexcept
    : is_ipv4_(source.is_v4()) {
  std::memset(prefix_.data(), 0xff, kOnesBytes);
  uint8_t* ip = prefix_.data() + kOnesBytes;
  if (is_ipv4_) {
    MakeIpv4Header(ip, source, destination);
  } else {
    MakeIpv6Header(ip, source, destination);
  }
  uint8_t* udp = ip + (is_ipv4_ ? kIpv4Bytes : kIpv6Bytes);
  StoreBe16(udp, source_port);
  StoreBe16(udp + 2, destination_port);
  StoreBe16(udp + 4, 0);
  udp[6] = udp[7] = 0xff;
  prefix_bytes_ = static_cast<uint8_t>(udp + kUdpBytes - prefix_.data());
}

uint32_t IcrcFlow::Begin(size_t udp_payload_bytes, std::span<const uint8_t> head) const noexcept {
  // Prefix and packet headers go through the CRC as one block: its cost is mostly per call.
  std::array<uint8_t, kMaxPrefixBytes + kMaxHeaderBytes> block;
  std::memcpy(block.data(), prefix_.data(), kMaxPrefixBytes);
  uint8_t* ip = block.data() + kOnesBytes;
  const auto udp_length = static_cast<uint16_t>(udp_payload_bytes + kUdpBytes);
  if (is_ipv4_) {
    StoreBe16(ip + 2, static_cast<uint16_t>(udp_length + kIpv4Bytes));
  } else {
    StoreBe16(ip + 4, udp_length);
  }
  uint8_t* bth = block.data() + prefix_bytes_;
  StoreBe16(bth - 4, udp_length);
  const size_t copied_bytes = std::min(head.size(), kMaxHeaderBytes);
  std::memcpy(bth, head.data(), copied_bytes);
  bth[kBthMaskedOffset] = 0xff;
  uint32_t crc = IcrcUpdate(0, {block.data(), prefix_bytes_ + copied_bytes});
  if (head.size() > copied_bytes) crc = IcrcUpdate(crc, head.subspan(copied_bytes));
  return crc;
}

uint32_t IcrcFlow::Compute(std::span<const uint8_t> icrc_input) const noexcept {
  return Begin(icrc_input.size() + sizeof(uint32_t), icrc_input);
}

}  // namespace rdmad::wire
