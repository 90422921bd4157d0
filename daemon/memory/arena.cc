#include "daemon/memory/arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"

namespace rdmad::memory {
namespace {

// The segment's header, and padding so that the first queue is aligned.
constexpr uint64_t kFirstOffset = kArenaAlignBytes;
static_assert(sizeof(shm::SegmentHeader) <= kFirstOffset);

// More than any queue needs; keeps the sums below far from overflow.
constexpr uint64_t kMaxRequestBytes = uint64_t{1} << 32;

uint64_t RoundUp(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingArena>> RingArena::Create(uint64_t size_bytes,
                                                             uint64_t reserve_step_bytes) {
  SegmentOptions options;
  options.name = "rdmad-arena";
  options.size_bytes = size_bytes;
  options.header = shm::SegmentKind::kArena;
  options.reserve = false;
  RD_ASSIGN_OR_RETURN(Segment segment, Segment::Create(options));
  return std::unique_ptr<RingArena>(new RingArena(std::move(segment), reserve_step_bytes));
}

RingArena::RingArena(Segment segment, uint64_t reserve_step_bytes)
    : segment_(std::move(segment)),
      reserve_step_bytes_(std::max(reserve_step_bytes, segment_.page_bytes())),
      reserved_bytes_(segment_.page_bytes()) {
  free_[kFirstOffset] = segment_.size_bytes() - kFirstOffset;
}

uint64_t RingArena::ReservationFor(uint64_t end) const noexcept {
  if (end <= reserved_bytes_) return reserved_bytes_;
  return std::min(RoundUp(end, reserve_step_bytes_), segment_.size_bytes());
}

absl::StatusOr<uint64_t> RingArena::Allocate(uint64_t bytes, uint64_t max_more_bytes) {
  RD_CHECK(bytes != 0 && bytes % kArenaAlignBytes == 0, "arena sizes are aligned");
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [bytes](const auto& extent) { return extent.second >= bytes; });
  if (found == free_.end()) return absl::NotFoundError("arena: no room");
  const auto [offset, extent_bytes] = *found;
  const uint64_t reservation = ReservationFor(offset + bytes);
  // Extents further up would take even more.
  if (reservation - reserved_bytes_ > max_more_bytes) {
    return absl::OutOfRangeError("arena: over the limit");
  }
  if (reservation > reserved_bytes_) {
    RD_RETURN_IF_ERROR(segment_.Reserve(reserved_bytes_, reservation - reserved_bytes_));
    reserved_bytes_ = reservation;
  }
  free_.erase(found);
  if (extent_bytes > bytes) free_[offset + bytes] = extent_bytes - bytes;
  used_bytes_ += bytes;
  // Always: the client could write here while nobody owned it.
  std::memset(segment_.data() + offset, 0, bytes);
  return offset;
}

void RingArena::Free(uint64_t offset, uint64_t bytes) {
  RD_CHECK(offset >= kFirstOffset && offset % kArenaAlignBytes == 0 && bytes <= used_bytes_ &&
               offset + bytes <= segment_.size_bytes(),
           "what is freed was allocated");
  auto next = free_.upper_bound(offset);
  RD_CHECK(next == free_.end() || offset + bytes <= next->first, "nothing is freed twice");
  used_bytes_ -= bytes;
  uint64_t begin = offset;
  uint64_t end = offset + bytes;
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    RD_CHECK(before->first + before->second <= offset, "nothing is freed twice");
    if (before->first + before->second == offset) {
      begin = before->first;
      free_.erase(before);
    }
  }
  if (next != free_.end() && next->first == end) {
    end += next->second;
    free_.erase(next);
  }
  free_[begin] = end - begin;
  if (used_bytes_ == 0) {
    segment_.Release(segment_.page_bytes(), segment_.size_bytes() - segment_.page_bytes());
    reserved_bytes_ = segment_.page_bytes();
  }
}

ArenaSet::ArenaSet(ArenaSetOptions options)
    : options_(options), next_arena_bytes_(options.first_arena_bytes) {}

absl::StatusOr<ArenaAllocation> ArenaSet::Allocate(uint64_t bytes) {
  if (bytes == 0 || bytes > kMaxRequestBytes) {
    return absl::InvalidArgumentError(absl::StrCat("arena: asked_bytes=", bytes));
  }
  const uint64_t rounded = RoundUp(bytes, kArenaAlignBytes);
  const uint64_t reserved = reserved_bytes();
  const uint64_t left = options_.limit_bytes > reserved ? options_.limit_bytes - reserved : 0;
  bool over_limit = false;
  for (size_t i = 0; i < arenas_.size(); ++i) {
    const absl::StatusOr<uint64_t> offset = arenas_[i]->Allocate(rounded, left);
    if (offset.ok()) return Describe(i, *offset, rounded);
    if (absl::IsResourceExhausted(offset.status())) return offset.status();
    over_limit = over_limit || absl::IsOutOfRange(offset.status());
  }
  // What an existing arena has room for, a new one cannot hold with less memory.
  if (over_limit || kFirstOffset + rounded > left) return LimitError(rounded);
  RD_RETURN_IF_ERROR(AddArena(kFirstOffset + rounded));
  RingArena& arena = *arenas_.back();
  const absl::StatusOr<uint64_t> offset =
      arena.Allocate(rounded, left - std::min(left, arena.reserved_bytes()));
  if (offset.ok()) return Describe(arenas_.size() - 1, *offset, rounded);
  // Nobody was told of it: take it away again, so that failing has no effect.
  arenas_.pop_back();
  return absl::IsOutOfRange(offset.status()) ? LimitError(rounded) : offset.status();
}

void ArenaSet::Free(const ArenaAllocation& allocation) {
  RD_CHECK(allocation.arena_id != 0 && allocation.arena_id <= arenas_.size(),
           "an arena of this set");
  arenas_[allocation.arena_id - 1]->Free(allocation.offset, allocation.bytes);
}

uint64_t ArenaSet::used_bytes() const noexcept {
  uint64_t sum = 0;
  for (const auto& arena : arenas_) sum += arena->used_bytes();
  return sum;
}

uint64_t ArenaSet::reserved_bytes() const noexcept {
  uint64_t sum = 0;
  for (const auto& arena : arenas_) sum += arena->reserved_bytes();
  return sum;
}

absl::Status ArenaSet::AddArena(uint64_t bytes) {
  // Larger than the largest arena: one of its own. Otherwise the sizes double.
  const uint64_t size_bytes =
      bytes > options_.max_arena_bytes ? bytes : std::max(next_arena_bytes_, std::bit_ceil(bytes));
  RD_ASSIGN_OR_RETURN(std::unique_ptr<RingArena> arena,
                      RingArena::Create(size_bytes, options_.reserve_step_bytes));
  if (bytes <= options_.max_arena_bytes) {
    next_arena_bytes_ = std::min(2 * size_bytes, options_.max_arena_bytes);
  }
  arenas_.push_back(std::move(arena));
  return absl::OkStatus();
}

absl::Status ArenaSet::LimitError(uint64_t bytes) const {
  return absl::ResourceExhaustedError(absl::StrCat("arena: the session's queues: max_arena_bytes=", options_.limit_bytes,
                                                   " current_bytes=", reserved_bytes(),
                                                   " asked_bytes=", bytes));
}

ArenaAllocation ArenaSet::Describe(size_t index, uint64_t offset, uint64_t bytes) const {
  const Segment& segment = arenas_[index]->segment();
  ArenaAllocation allocation;
  allocation.arena_id = index + 1;
  allocation.arena_bytes = segment.size_bytes();
  allocation.offset = offset;
  allocation.bytes = bytes;
  allocation.addr = segment.data() + offset;
  allocation.arena_fd = segment.fd();
  return allocation;
}

}  // namespace rdmad::memory
