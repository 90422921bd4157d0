// A pool: a segment of raw payload that one client and the daemon both map. It has no header: every
// byte is the client's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/memory/segment.h"

namespace rdmad::memory {

inline constexpr size_t kMaxPoolNameBytes = 64;

struct PoolOptions {
  uint64_t size_bytes = 0;  // rounded up to whole pages
  HugePages huge_pages = HugePages::kNo;
  std::string name;  // for operators: at most 64 bytes of printable ASCII
};

// Thread: control (Create: any; it may take long for a large pool). Owner: Session.
// Destroy only after every Mr on it is deactivated.
class Pool {
 public:
  // Errors: InvalidArgument (size 0 or absurd, bad name); ResourceExhausted (no memory or no huge
  // pages; names asked and available).
  static absl::StatusOr<Pool> Create(const PoolOptions& options);

  std::byte* data() const noexcept { return segment_.data(); }
  uint64_t size_bytes() const noexcept { return segment_.size_bytes(); }
  uint64_t page_bytes() const noexcept { return segment_.page_bytes(); }
  int fd() const noexcept { return segment_.fd(); }
  const std::string& name() const noexcept { return name_; }
  // Why huge pages were preferred but not given; empty otherwise.
  const std::string& fallback_reason() const noexcept { return segment_.fallback_reason(); }

 private:
  Pool(Segment segment, std::string name);

  Segment segment_;
  std::string name_;
};

}  // namespace rdmad::memory
