// Ring arenas: work queues and completion queues of many sizes in few segments, so that 10,000 QPs
// need a few dozen descriptors and an idle queue costs no more than its own bytes.
//
// A session has one ArenaSet. Its first arena is small, each further one twice as large up to a
// limit; a request that fits none of these sizes gets an arena of its own. An arena is mapped whole
// but gets memory only as far as it is handed out, in small steps, and gives all of it back once
// it is empty. The client maps an arena once, when the first reply that names it comes; arena ids
// are never reused.
//
// Free space is kept in private memory of the daemon (the arena itself is client-writable), merged
// with its neighbours, and handed out first-fit. What is handed out is zeroed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/memory/segment.h"

namespace rdmad::memory {

// Two cache lines: the adjacent-line prefetcher then couples no two queues.
inline constexpr uint64_t kArenaAlignBytes = 128;

// One arena. Thread: control. Owner: ArenaSet.
class RingArena {
 public:
  // `size_bytes` in whole pages. `reserve_step_bytes`: how much memory is added at a time.
  static absl::StatusOr<std::unique_ptr<RingArena>> Create(uint64_t size_bytes,
                                                           uint64_t reserve_step_bytes);

  // The offset of `bytes` zeroed bytes; `bytes` is a multiple of kArenaAlignBytes.
  // Errors: NotFound (no room); OutOfRange (room, but it would take more than `max_more_bytes` of
  // new memory); ResourceExhausted (room, but the machine has no memory).
  absl::StatusOr<uint64_t> Allocate(uint64_t bytes, uint64_t max_more_bytes);
  // Takes back what Allocate() gave.
  void Free(uint64_t offset, uint64_t bytes);

  const Segment& segment() const noexcept { return segment_; }
  uint64_t used_bytes() const noexcept { return used_bytes_; }
  // Memory behind the arena now.
  uint64_t reserved_bytes() const noexcept { return reserved_bytes_; }

 private:
  RingArena(Segment segment, uint64_t reserve_step_bytes);
  // Where the reservation must end so that it covers `end`.
  uint64_t ReservationFor(uint64_t end) const noexcept;

  Segment segment_;
  const uint64_t reserve_step_bytes_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes; neighbours are always merged
  uint64_t used_bytes_ = 0;
  uint64_t reserved_bytes_ = 0;  // a prefix of the segment
};

struct ArenaSetOptions {
  uint64_t first_arena_bytes = 256 * 1024;
  uint64_t max_arena_bytes = 16 * 1024 * 1024;
  uint64_t reserve_step_bytes = 16 * 1024;
  uint64_t limit_bytes = 256ull * 1024 * 1024;  // memory of all arenas together
};

struct ArenaAllocation {
  uint64_t arena_id = 0;     // from 1
  uint64_t arena_bytes = 0;  // of the whole segment: what the client maps
  uint64_t offset = 0;
  uint64_t bytes = 0;  // as asked, rounded up to kArenaAlignBytes
  std::byte* addr = nullptr;
  int arena_fd = -1;  // stays owned by the arena
};

// Thread: control. Owner: Session.
class ArenaSet {
 public:
  explicit ArenaSet(ArenaSetOptions options = {});

  // Errors: InvalidArgument (0 bytes); ResourceExhausted (the limit: names limit, use and what was
  // asked; or the machine's memory).
  absl::StatusOr<ArenaAllocation> Allocate(uint64_t bytes);
  // `allocation` as Allocate() gave it. No engine may use the queue any more.
  void Free(const ArenaAllocation& allocation);

  size_t arena_count() const noexcept { return arenas_.size(); }
  uint64_t used_bytes() const noexcept;
  // Memory behind all arenas: what counts against the limit.
  uint64_t reserved_bytes() const noexcept;
  uint64_t limit_bytes() const noexcept { return options_.limit_bytes; }

 private:
  absl::Status AddArena(uint64_t bytes);
  absl::Status LimitError(uint64_t bytes) const;
  ArenaAllocation Describe(size_t index, uint64_t offset, uint64_t bytes) const;

  const ArenaSetOptions options_;
  std::vector<std::unique_ptr<RingArena>> arenas_;  // arena id - 1
  uint64_t next_arena_bytes_;
};

}  // namespace rdmad::memory
