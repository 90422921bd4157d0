#include "daemon/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/memory/memory_room.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // since Linux 6.3
#endif

namespace rdmad::memory {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 62;
// memfd_create(2): names are limited to 249 bytes.
constexpr size_t kMaxNameBytes = 249;
// Below this, asking how much memory is left costs more than it is worth.
constexpr uint64_t kAskForRoomBytes = 1 << 20;
// Left to the daemon itself when a large segment takes the rest.
constexpr uint64_t kSpareBytes = 64 << 20;

uint64_t RoundUp(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool IsShortage(int error) {
  return error == ENOSPC || error == ENOMEM || error == EMFILE || error == ENFILE ||
         error == EDQUOT || error == EFBIG;
}

absl::Status ErrnoError(const char* call, uint64_t bytes, int error) {
  const absl::Status status = absl::ErrnoToStatus(error, call);
  const std::string text =
      absl::StrCat("segment: ", std::string(status.message()), " asked_bytes=", bytes);
  return IsShortage(error) ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

UniqueFd CreateMemfd(const std::string& name, unsigned extra_flags) {
  const std::string cut = name.substr(0, kMaxNameBytes);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | extra_flags;
  int fd = ::memfd_create(cut.c_str(), flags | MFD_NOEXEC_SEAL);
  // Older kernels refuse a flag that they do not know.
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(cut.c_str(), flags);
  return UniqueFd(fd);
}

absl::Status CheckRoom(uint64_t bytes) {
  if (bytes < kAskForRoomBytes) return absl::OkStatus();
  const MemoryRoom room = AvailableMemory();
  if (room.bytes >= kSpareBytes && bytes <= room.bytes - kSpareBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("segment: not enough memory: asked_bytes=", bytes,
                   " available_bytes=", room.bytes, " limited_by=", room.limit));
}

absl::Status Allocate(int fd, uint64_t offset, uint64_t bytes) {
  int result;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result < 0 && errno == EINTR);
  return result < 0 ? ErrnoError("fallocate", bytes, errno) : absl::OkStatus();
}

struct SizedMemfd {
  UniqueFd fd;
  uint64_t size_bytes;
  uint64_t page_bytes;
};

absl::StatusOr<SizedMemfd> CreateSized(const SegmentOptions& options, bool huge) {
  SizedMemfd memfd;
  memfd.fd = CreateMemfd(options.name, huge ? MFD_HUGETLB : 0);
  if (!memfd.fd) return ErrnoError("memfd_create", options.size_bytes, errno);
  struct stat info {};
  if (::fstat(memfd.fd.get(), &info) < 0) return ErrnoError("fstat", options.size_bytes, errno);
  memfd.page_bytes = static_cast<uint64_t>(info.st_blksize);
  memfd.size_bytes = RoundUp(options.size_bytes, memfd.page_bytes);
  if (options.reserve && !huge) RD_RETURN_IF_ERROR(CheckRoom(memfd.size_bytes));
  if (::ftruncate(memfd.fd.get(), static_cast<off_t>(memfd.size_bytes)) < 0) {
    return ErrnoError("ftruncate", memfd.size_bytes, errno);
  }
  const uint64_t reserve_bytes =
      options.reserve ? memfd.size_bytes : (options.header ? memfd.page_bytes : 0);
  if (reserve_bytes != 0) RD_RETURN_IF_ERROR(Allocate(memfd.fd.get(), 0, reserve_bytes));
  return memfd;
}

// Huge pages first, where they are wanted; then, where that is allowed, ordinary ones.
absl::StatusOr<SizedMemfd> CreateAsWanted(const SegmentOptions& options, std::string& fallback) {
  if (options.huge_pages == HugePages::kNo) return CreateSized(options, false);
  absl::StatusOr<SizedMemfd> memfd = CreateSized(options, true);
  if (memfd.ok()) {
    const bool mostly_waste = memfd->size_bytes - options.size_bytes > options.size_bytes;
    if (options.huge_pages == HugePages::kRequire || !mostly_waste) return memfd;
    fallback = absl::StrCat("smaller than half a huge page of ", memfd->page_bytes, " bytes");
  } else if (options.huge_pages == HugePages::kRequire) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no huge pages (see /proc/sys/vm/nr_hugepages): ", std::string(memfd.status().message())));
  } else {
    fallback = std::string(memfd.status().message());
  }
  return CreateSized(options, false);
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(const SegmentOptions& options) {
  if (options.size_bytes == 0 || options.size_bytes > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: size_bytes=", options.size_bytes, " must be 1..", kMaxBytes));
  }
  Segment segment;
  RD_ASSIGN_OR_RETURN(SizedMemfd memfd, CreateAsWanted(options, segment.fallback_reason_));
  void* const addr =
      ::mmap(nullptr, memfd.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.fd.get(), 0);
  if (addr == MAP_FAILED) return ErrnoError("mmap", memfd.size_bytes, errno);
  segment.fd_ = std::move(memfd.fd);
  segment.data_ = static_cast<std::byte*>(addr);
  segment.size_bytes_ = memfd.size_bytes;
  segment.page_bytes_ = memfd.page_bytes;
  segment.guard_ = BusGuardedRange(addr, memfd.size_bytes, memfd.page_bytes);
  if (options.header) {
    new (addr)
        shm::SegmentHeader{shm::kShmMagic, shm::kShmVersion, *options.header, memfd.size_bytes, {}};
  } else {
    // Payload of clients does not belong into the daemon's core dumps.
    static_cast<void>(::madvise(addr, memfd.size_bytes, MADV_DONTDUMP));
  }
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                    (options.read_only_to_others ? F_SEAL_FUTURE_WRITE : 0);
  if (::fcntl(segment.fd(), F_ADD_SEALS, seals) < 0) {
    return ErrnoError("F_ADD_SEALS", memfd.size_bytes, errno);
  }
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      page_bytes_(std::exchange(other.page_bytes_, 0)),
      guard_(std::move(other.guard_)),
      fallback_reason_(std::move(other.fallback_reason_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  Segment taken(std::move(other));
  std::swap(fd_, taken.fd_);
  std::swap(data_, taken.data_);
  std::swap(size_bytes_, taken.size_bytes_);
  std::swap(page_bytes_, taken.page_bytes_);
  std::swap(guard_, taken.guard_);
  std::swap(fallback_reason_, taken.fallback_reason_);
  return *this;
}

Segment::~Segment() {
  guard_.Reset();
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

absl::Status Segment::Reserve(uint64_t offset, uint64_t bytes) {
  RD_CHECK(offset <= size_bytes_ && bytes <= size_bytes_ - offset, "a range of the segment");
  RD_RETURN_IF_ERROR(CheckRoom(bytes));
  return Allocate(fd_.get(), offset, bytes);
}

void Segment::Release(uint64_t offset, uint64_t bytes) noexcept {
  RD_CHECK(offset <= size_bytes_ && bytes <= size_bytes_ - offset, "a range of the segment");
  // The kernel frees whole pages and zeroes the rest of the range. Failing leaves more memory in
  // use.
  static_cast<void>(::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

absl::StatusOr<ForeignSegment> CheckForeignSegment(int fd, uint64_t min_bytes) {
  // Anything but tmpfs and hugetlbfs files has no seals.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || ::fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError("foreign segment: the descriptor is not a memfd");
  }
  const uint64_t size_bytes = static_cast<uint64_t>(info.st_size);
  if (size_bytes < min_bytes || size_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("foreign segment: size_bytes=", size_bytes, " needed_bytes=", min_bytes));
  }
  for (const auto& [seal, name] :
       {std::pair{F_SEAL_SHRINK, "F_SEAL_SHRINK"}, std::pair{F_SEAL_GROW, "F_SEAL_GROW"},
        std::pair{F_SEAL_SEAL, "F_SEAL_SEAL"}}) {
    if ((seals & seal) == 0) {
      return absl::FailedPreconditionError(absl::StrCat("foreign segment: seal missing: ", name));
    }
  }
  // st_blocks counts 512 bytes, whatever the page size.
  const uint64_t reserved_bytes = static_cast<uint64_t>(info.st_blocks) * 512;
  if (reserved_bytes < size_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("foreign segment: not reserved (use posix_fallocate): size_bytes=", size_bytes,
                     " reserved_bytes=", reserved_bytes));
  }
  const int access = ::fcntl(fd, F_GETFL) & O_ACCMODE;
  ForeignSegment result;
  result.size_bytes = size_bytes;
  result.page_bytes = static_cast<uint64_t>(info.st_blksize);
  result.writable = access == O_RDWR && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0;
  return result;
}

}  // namespace rdmad::memory
