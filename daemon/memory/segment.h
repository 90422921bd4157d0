// A segment: one memfd that the daemon creates, sizes, reserves, maps and seals before anyone else
// sees it.
//
// Sealed (shrink, grow, seal), so that no client can truncate it and fault the daemon. Reserved, so
// that a full tmpfs or an exhausted huge page pool is an error here and not a SIGBUS later. Zeroed
// by the kernel. Since memfds have no size limit of their own and reserving more than there is
// would call the OOM killer, the size is compared with what the machine and the cgroup have left
// first.
//
// A client that holds the descriptor may still punch holes into it (there is no seal against that
// which leaves it writable): ordinary pages come back as zeros, and bus_guard.h stands behind huge
// ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/memory/bus_guard.h"
#include "proto/shm/segment.h"

namespace rdmad::memory {

enum class HugePages : uint8_t {
  kNo,
  kPrefer,   // falls back to ordinary pages; page_bytes() and fallback_reason() say so
  kRequire,  // ResourceExhausted if there are none
};

struct SegmentOptions {
  std::string name;         // seen in /proc/<pid>/maps; cut to what the kernel takes
  uint64_t size_bytes = 0;  // rounded up to whole pages
  HugePages huge_pages = HugePages::kNo;
  // Writes a SegmentHeader of this kind at the beginning.
  std::optional<shm::SegmentKind> header;
  // False: nothing but the header's page is reserved at creation; the owner calls Reserve() before
  // it touches a range.
  bool reserve = true;
  // True: nobody but this mapping can ever write (F_SEAL_FUTURE_WRITE). For the engine page.
  bool read_only_to_others = false;
};

// Thread: any one at a time (creating a large one takes a while: the kernel zeroes it).
// Owner: whoever holds it; destruction unmaps and closes. Move-only.
class Segment {
 public:
  // Errors: InvalidArgument (size 0 or absurd); ResourceExhausted (no memory, huge pages or
  // descriptors left; names asked and available); Internal (the kernel refuses memfds or seals).
  static absl::StatusOr<Segment> Create(const SegmentOptions& options);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  std::byte* data() const noexcept { return data_; }
  uint64_t size_bytes() const noexcept { return size_bytes_; }
  uint64_t page_bytes() const noexcept { return page_bytes_; }
  // To be sent with SCM_RIGHTS; stays owned by the segment.
  int fd() const noexcept { return fd_.get(); }
  // Why kPrefer became ordinary pages; empty if it did not.
  const std::string& fallback_reason() const noexcept { return fallback_reason_; }

  // Makes sure that [offset, offset + bytes) has memory behind it. For segments with reserve=false.
  // Errors: ResourceExhausted, as for Create.
  absl::Status Reserve(uint64_t offset, uint64_t bytes);
  // Gives the whole pages of the range back to the kernel; they read as zeros afterwards.
  void Release(uint64_t offset, uint64_t bytes) noexcept;

 private:
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t page_bytes_ = 0;
  BusGuardedRange guard_;
  std::string fallback_reason_;
};

struct ForeignSegment {
  uint64_t size_bytes;
  uint64_t page_bytes;
  bool writable;  // may be mapped for writing
};

// Whether a descriptor that a client handed in may be mapped: a memfd of at least `min_bytes` that
// carries the seals of our own (shrink, grow, seal) and has memory behind all of it.
// Errors: InvalidArgument (not a memfd, too small); FailedPrecondition (a seal is missing, memory
// is not reserved; says which).
absl::StatusOr<ForeignSegment> CheckForeignSegment(int fd, uint64_t min_bytes);

}  // namespace rdmad::memory
