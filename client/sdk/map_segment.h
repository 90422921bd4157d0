#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/sdk/mapping.h"
#include "client/sdk/status_macros.h"
#include "client/sdk/unique_fd.h"
#include "proto/shm/segment.h"

namespace rdmad::sdk {

// Maps a segment that must be as large as a `Segment` and have the header of its kind. `what` opens the message.
// Errors: Internal (too small), FailedPrecondition (another header), those of mmap(2).
template <typename Segment>
absl::StatusOr<Mapping> MapSegment(const UniqueFd& fd, uint64_t size_bytes, int protection, shm::SegmentKind kind,
                                   const std::string& what) {
  if (size_bytes < sizeof(Segment)) {
    return absl::InternalError(absl::StrCat(what, ": bytes=", size_bytes, " need=", sizeof(Segment)));
  }
  SDK_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), size_bytes, protection, what));
  if (!shm::IsValidHeader(*reinterpret_cast<const shm::SegmentHeader*>(mapping.data()), kind, size_bytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": bad header: client and daemon are of different versions"));
  }
  return mapping;
}

}  // namespace rdmad::sdk
