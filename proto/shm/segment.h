// What every shared segment of rdmad has in common.
//
// A segment is a memfd that the daemon creates, sizes and seals (shrink, grow, seal) before any client sees it. Each
// segment starts with a SegmentHeader that both sides check once after mapping. Everything behind the header is
// fixed-width fields and offsets: no pointers, no bool, no C++ container. Changing a layout bumps kShmVersion.
//
// Trust: clients can write to all of these segments but the engine page. The daemon therefore keeps private copies of
// sizes, masks and its own indices, copies a slot once and validates the copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmad::shm {

inline constexpr size_t kCacheLine = 64;
inline constexpr uint32_t kShmMagic = 0x444d4452;  // "RDMD", little-endian
inline constexpr uint16_t kShmVersion = 1;

enum class SegmentKind : uint16_t {
  kControl = 1,     // doorbells of one session; ControlSegment in doorbell.h
  kArena = 2,       // work and completion queues; offsets are handed out by the daemon
  kEnginePage = 3,  // read-only to clients; EnginePage in engine_page.h
};

struct alignas(kCacheLine) SegmentHeader {
  uint32_t magic;
  uint16_t version;
  SegmentKind kind;
  uint64_t size_bytes;
  uint8_t reserved[48];
};
static_assert(sizeof(SegmentHeader) == kCacheLine && offsetof(SegmentHeader, size_bytes) == 8);

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == 4 && sizeof(std::atomic<uint64_t>) == 8);

// Whether a freshly mapped segment is what the reply said it is.
inline bool IsValidHeader(const SegmentHeader& header, SegmentKind kind, uint64_t size_bytes) noexcept {
  return header.magic == kShmMagic && header.version == kShmVersion && header.kind == kind &&
         header.size_bytes == size_bytes;
}

}  // namespace rdmad::shm
