#include "tests/support/bottleneck.h"

#include <algorithm>
#include <utility>

namespace rdmad::testing {
namespace {

constexpr size_t kEthernetBytes = 14;
constexpr size_t kIpv4Bytes = 20;

// Of an IPv4 or IPv6 packet that begins at `ip`: both ECN bits set if one is. False if none is.
bool MarkIfAllowed(std::span<uint8_t> ip) {
  if (ip[0] >> 4 == 6) {
    if ((ip[1] & 0x30) == 0) return false;
    ip[1] |= 0x30;
    return true;
  }
  if (ip[0] >> 4 != 4 || (ip[1] & 3) == 0) return false;
  ip[1] |= 3;
  ip[10] = ip[11] = 0;
  uint32_t sum = 0;  // RFC 1071
  for (size_t i = 0; i < kIpv4Bytes; i += 2) sum += static_cast<uint32_t>(ip[i] << 8 | ip[i + 1]);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  ip[10] = static_cast<uint8_t>(~sum >> 8);
  ip[11] = static_cast<uint8_t>(~sum);
  return true;
}

}  // namespace

void Bottleneck::Offer(std::span<const uint8_t> frame, int64_t now_ns) {
  if (queued_bytes_ + frame.size() > options_.limit_bytes) {
    ++counts_.dropped;
    return;
  }
  std::vector<uint8_t> copy(frame.begin(), frame.end());
  if (queued_bytes_ >= options_.mark_bytes && copy.size() > kEthernetBytes + kIpv4Bytes &&
      MarkIfAllowed(std::span(copy).subspan(kEthernetBytes))) {
    ++counts_.marked;
  }
  queued_bytes_ += frame.size();
  counts_.longest_bytes = std::max(counts_.longest_bytes, queued_bytes_);
  busy_until_ns_ = std::max(busy_until_ns_, now_ns) +
                   static_cast<int64_t>(frame.size() * 1'000'000'000 / options_.bytes_per_s);
  queue_.push_back({std::move(copy), busy_until_ns_});
}

std::vector<uint8_t> Bottleneck::Take(int64_t now_ns) {
  if (NextNs() > now_ns) return {};
  std::vector<uint8_t> frame = std::move(queue_.front().frame);
  queue_.pop_front();
  queued_bytes_ -= frame.size();
  ++counts_.passed;
  return frame;
}

}  // namespace rdmad::testing
