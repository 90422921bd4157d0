#include "daemon/memory/pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::memory {

absl::StatusOr<Pool> Pool::Create(const PoolOptions& options) {
  if (options.name.size() > kMaxPoolNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool: name_bytes=", options.name.size(), " limit_bytes=", kMaxPoolNameBytes));
  }
  if (!std::all_of(options.name.begin(), options.name.end(),
                   [](char c) { return c >= ' ' && c <= '~'; })) {
    return absl::InvalidArgumentError("pool: the name has bytes other than printable ASCII");
  }
  SegmentOptions segment_options;
  segment_options.name = absl::StrCat("rdmad-pool:", options.name);
  segment_options.size_bytes = options.size_bytes;
  segment_options.huge_pages = options.huge_pages;
  RD_ASSIGN_OR_RETURN(Segment segment, Segment::Create(segment_options));
  return Pool(std::move(segment), options.name);
}

Pool::Pool(Segment segment, std::string name)
    : segment_(std::move(segment)), name_(std::move(name)) {}

}  // namespace rdmad::memory
