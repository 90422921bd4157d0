#include "client/rdmactl/bench/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rdmad::rdmactl {
namespace {

constexpr uint32_t kMagic = 0x52444d42;  // "RDMB"
constexpr uint32_t kVersion = 1;
constexpr size_t kOptionsBytes = 24;

void Put(std::vector<uint8_t>* out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out->push_back(static_cast<uint8_t>(value >> shift));
}

uint64_t Get(const std::vector<uint8_t>& in, size_t offset, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | in[offset + i];
  return value;
}

}  // namespace

const char* BenchModeName(BenchMode mode) {
  switch (mode) {
    case BenchMode::kSend:
      return "send";
    case BenchMode::kWrite:
      return "write";
    case BenchMode::kRead:
      return "read";
  }
  return "?";
}

const char* BenchMetricName(BenchMetric metric) {
  switch (metric) {
    case BenchMetric::kLatency:
      return "latency";
    case BenchMetric::kBandwidth:
      return "bandwidth";
    case BenchMetric::kRate:
      return "rate";
  }
  return "?";
}

std::vector<uint8_t> EncodeBenchOptions(const BenchOptions& options) {
  std::vector<uint8_t> out;
  Put(&out, kMagic, 4);
  Put(&out, kVersion, 4);
  Put(&out, static_cast<uint8_t>(options.mode), 1);
  Put(&out, static_cast<uint8_t>(options.metric), 1);
  Put(&out, static_cast<uint8_t>(options.wait), 1);
  Put(&out, 0, 1);
  Put(&out, options.size_bytes, 4);
  Put(&out, options.depth, 4);
  Put(&out, 0, 4);
  return out;
}

absl::StatusOr<BenchOptions> DecodeBenchOptions(const std::vector<uint8_t>& in) {
  if (in.size() < kOptionsBytes || Get(in, 0, 4) != kMagic) {
    return absl::InvalidArgumentError("bench: the peer is not rdmactl bench");
  }
  if (Get(in, 4, 4) != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("bench: the peer speaks version ", Get(in, 4, 4), ", this one ", kVersion));
  }
  BenchOptions options;
  options.mode = static_cast<BenchMode>(in[8]);
  options.metric = static_cast<BenchMetric>(in[9]);
  options.wait = static_cast<WaitStyle>(in[10]);
  options.size_bytes = static_cast<uint32_t>(Get(in, 12, 4));
  options.depth = static_cast<uint32_t>(Get(in, 16, 4));
  if (options.mode > BenchMode::kRead || options.metric > BenchMetric::kRate || options.wait > WaitStyle::kPolled ||
      options.size_bytes == 0 || options.depth == 0) {
    return absl::InvalidArgumentError("bench: malformed request");
  }
  return options;
}

std::vector<uint8_t> EncodeTarget(const RemoteBuffer& target) {
  const auto bytes = target.Encode();
  std::vector<uint8_t> out(bytes.size());
  std::transform(bytes.begin(), bytes.end(), out.begin(), [](std::byte byte) { return static_cast<uint8_t>(byte); });
  return out;
}

absl::StatusOr<RemoteBuffer> DecodeTarget(const std::vector<uint8_t>& in) {
  return RemoteBuffer::Decode(std::as_bytes(std::span(in)));
}

absl::StatusOr<BenchMemory> BenchMemory::Create(const Client& client, uint32_t size_bytes, uint32_t count) {
  // Each buffer begins on a cache line of its own.
  const uint64_t stride = (uint64_t{size_bytes} + 63) / 64 * 64;
  if (stride > UINT32_MAX) return absl::InvalidArgumentError(absl::StrCat("bench: size_bytes=", size_bytes));
  absl::StatusOr<Pool> pool = Pool::Create(client, stride * count, {.name = "bench"});
  if (!pool.ok()) return pool.status();
  absl::StatusOr<Buffer> buffer = pool->Allocate(stride * count);
  if (!buffer.ok()) return buffer.status();
  return BenchMemory(std::move(pool).value(), std::move(buffer).value(), size_bytes, static_cast<uint32_t>(stride));
}

absl::Status BenchMemory::Register(const CmId& id) {
  absl::StatusOr<MemoryRegion> region = id.RegMsgs(buffer_.data(), buffer_.size());
  if (!region.ok()) return region.status();
  region_ = std::move(region).value();
  return absl::OkStatus();
}

QpInit BenchQp(const BenchOptions& options) {
  QpInit init;
  init.cap.max_send_wr = options.depth;
  init.cap.max_recv_wr = BenchReceives(options);
  init.cap.max_inline_bytes = kBenchInlineBytes;
  return init;
}

}  // namespace rdmad::rdmactl
