// Payload memory that this process and the daemon share: a Pool, and Buffer, a slice of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "rdmad/client.h"

namespace rdmad {

namespace sdk {
class PoolMapping;
class PoolState;
}  // namespace sdk

// A piece of a Pool, given back when the Buffer is destroyed. Move-only; may outlive its Pool object.
// Thread: one at a time.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Release(); }

  // The first byte; null when empty. Aligned to 64 bytes.
  std::byte* data() const noexcept { return data_; }
  // How many bytes it says it holds: what was asked for, or what was received.
  size_t size() const noexcept { return size_bytes_; }
  // How many bytes fit.
  size_t capacity() const noexcept { return capacity_bytes_; }
  bool empty() const noexcept { return size_bytes_ == 0; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_bytes_}; }
  // Sets size(), at most to capacity().
  void resize(size_t size_bytes) noexcept { size_bytes_ = size_bytes < capacity_bytes_ ? size_bytes : capacity_bytes_; }

  // Immediate data of the message that this was received with, host order.
  bool has_imm() const noexcept { return has_imm_; }
  uint32_t imm() const noexcept { return imm_; }

  // Gives the memory back now.
  void Release() noexcept;

  const std::shared_ptr<sdk::PoolMapping>& mapping() const noexcept { return mapping_; }
  // For the SDK.
  Buffer(std::shared_ptr<sdk::PoolMapping> mapping, std::byte* data, size_t size_bytes, size_t capacity_bytes) noexcept;
  void set_imm(uint32_t imm) noexcept {
    has_imm_ = true;
    imm_ = imm;
  }

 private:
  std::shared_ptr<sdk::PoolMapping> mapping_;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  size_t capacity_bytes_ = 0;
  uint32_t imm_ = 0;
  bool has_imm_ = false;
};

enum class HugePages : uint8_t { kNo, kPrefer, kRequire };

struct PoolOptions {
  HugePages huge_pages = HugePages::kNo;
  std::string name;  // for operators; at most 64 bytes
};

// Shared memory for payload. The daemon registers it as a whole once per protection domain, so that messages in it cost
// no registration; each remote-access key covers exactly what it was made for (verbs.h). A Pool is a cheap handle.
// Thread: any.
class Pool {
 public:
  // Errors: ResourceExhausted (over the session's quota, or no huge pages; names the limit), InvalidArgument (size 0).
  static absl::StatusOr<Pool> Create(const Client& client, size_t size_bytes, PoolOptions options = {});

  // A slice of `size_bytes`, zeroed only the first time that its memory is used. After the daemon was lost, the next
  // call makes a new pool of the same size in a new session; Buffers of the old one stay readable.
  // Buffers of sends that are done are free again; those of sends under way are not (Endpoint::Flush waits for them).
  // Errors: ResourceExhausted (not enough contiguous space; says how much is free), InvalidArgument (size 0),
  // Unavailable (no daemon).
  absl::StatusOr<Buffer> Allocate(size_t size_bytes);
  // Allocate, filled with a copy of `bytes`.
  absl::StatusOr<Buffer> AllocateCopy(std::span<const std::byte> bytes);
  absl::StatusOr<Buffer> AllocateCopy(std::string_view text);

  // All of the memory, for those who divide it by themselves (do not mix with Allocate).
  std::span<std::byte> memory() const;
  // Size of a page as the daemon got it: 4096, or that of huge pages.
  size_t page_bytes() const;
  size_t size_bytes() const;
  size_t free_bytes() const;

  const std::shared_ptr<sdk::PoolState>& state() const { return state_; }

 private:
  explicit Pool(std::shared_ptr<sdk::PoolState> state);
  std::shared_ptr<sdk::PoolState> state_;
};

}  // namespace rdmad
