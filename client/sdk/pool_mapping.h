// A pool of one session, mapped: the memory behind Pool and Buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/sdk/mapping.h"
#include "client/sdk/session.h"
#include "client/sdk/slice_allocator.h"
#include "rdmad/pool.h"

namespace rdmad::sdk {

// Thread: any. Owner: Pools, Buffers and regions that lie in it; with the last of them the daemon's pool goes too.
class PoolMapping {
 public:
  static absl::StatusOr<std::shared_ptr<PoolMapping>> Create(const std::shared_ptr<Session>& session,
                                                             size_t size_bytes, const PoolOptions& options);
  ~PoolMapping();
  PoolMapping(const PoolMapping&) = delete;
  PoolMapping& operator=(const PoolMapping&) = delete;

  const std::shared_ptr<Session>& session() const noexcept { return session_; }
  uint64_t handle() const noexcept { return handle_; }
  std::byte* data() const noexcept { return mapping_.data(); }
  size_t size_bytes() const noexcept { return mapping_.size_bytes(); }
  size_t page_bytes() const noexcept { return page_bytes_; }

  // Null if there is no room.
  std::byte* TryAllocate(size_t size_bytes);
  void Free(std::byte* data, size_t size_bytes) noexcept;
  size_t free_bytes() const;
  size_t LargestFree() const;

 private:
  PoolMapping(std::shared_ptr<Session> session, uint64_t handle, size_t page_bytes, Mapping mapping);

  const std::shared_ptr<Session> session_;
  const uint64_t handle_;
  const size_t page_bytes_;
  const Mapping mapping_;
  mutable std::mutex mutex_;
  mutable SliceAllocator allocator_;
};

// What a Pool is: how to make the memory, and the memory that it has now.
class PoolState {
 public:
  PoolState(std::shared_ptr<ClientState> client, size_t size_bytes, PoolOptions options,
            std::shared_ptr<PoolMapping> mapping);

  std::shared_ptr<PoolMapping> mapping() const;
  // Of a living session: made anew if the daemon was lost.
  absl::StatusOr<std::shared_ptr<PoolMapping>> Live();

 private:
  const std::shared_ptr<ClientState> client_;
  const size_t size_bytes_;
  const PoolOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<PoolMapping> mapping_;
};

}  // namespace rdmad::sdk
