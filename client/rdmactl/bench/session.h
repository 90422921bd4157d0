// What both sides of a measurement have: the parameters on the wire, and a connected QP with memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/rdmactl/bench/bench.h"
#include "rdmad/rdmad.h"

namespace rdmad::rdmactl {

// Private data of the connection request. 24 bytes, big-endian.
std::vector<uint8_t> EncodeBenchOptions(const BenchOptions& options);
// Errors: InvalidArgument (another program, another version).
absl::StatusOr<BenchOptions> DecodeBenchOptions(const std::vector<uint8_t>& private_data);

// Private data of the answer: where to write or read.
std::vector<uint8_t> EncodeTarget(const RemoteBuffer& target);
absl::StatusOr<RemoteBuffer> DecodeTarget(const std::vector<uint8_t>& private_data);

// Memory of one side: `count` buffers of the size that is measured, for local use. Thread: one at a time.
class BenchMemory {
 public:
  static absl::StatusOr<BenchMemory> Create(const Client& client, uint32_t size_bytes, uint32_t count);
  // Registers it with the PD of `id`.
  absl::Status Register(const CmId& id);

  Sge SgeAt(uint32_t index) const noexcept {
    return {reinterpret_cast<uintptr_t>(buffer_.data()) + uint64_t{index} * stride_bytes_, size_bytes_,
            region_.lkey()};
  }
  const Buffer& buffer() const noexcept { return buffer_; }

 private:
  BenchMemory(Pool pool, Buffer buffer, uint32_t size_bytes, uint32_t stride_bytes)
      : pool_(std::move(pool)), buffer_(std::move(buffer)), size_bytes_(size_bytes), stride_bytes_(stride_bytes) {}
  Pool pool_;
  Buffer buffer_;
  MemoryRegion region_;
  uint32_t size_bytes_;
  uint32_t stride_bytes_;
};

// Queues for `depth` operations, of which each may be inline if it is small; and for more receives than a peer can have
// sends under way, so that it never waits for one to be posted anew.
QpInit BenchQp(const BenchOptions& options);
constexpr uint32_t BenchReceives(const BenchOptions& options) { return 4 * options.depth; }
// Bytes up to which sends and writes are posted inline.
inline constexpr uint32_t kBenchInlineBytes = 64;

}  // namespace rdmad::rdmactl
