#include "daemon/memory/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::memory {
namespace {

constexpr int kOurSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Segment CreateOrDie(const SegmentOptions& options) {
  absl::StatusOr<Segment> segment = Segment::Create(options);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return std::move(segment).value();
}

SegmentOptions Sized(uint64_t size_bytes) {
  SegmentOptions options;
  options.name = "segment_test";
  options.size_bytes = size_bytes;
  return options;
}

uint64_t ReservedBytes(int fd) {
  struct stat info {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(Segment, SizeIsRoundedUpToPages) {
  for (const auto& [asked, got] :
       {std::pair<uint64_t, uint64_t>{1, 4096}, {4096, 4096}, {4097, 8192}}) {
    EXPECT_EQ(CreateOrDie(Sized(asked)).size_bytes(), got) << asked;
  }
}

TEST(Segment, IsZeroedMappedAndReservedWhole) {
  const Segment segment = CreateOrDie(Sized(1 << 20));
  EXPECT_EQ(ReservedBytes(segment.fd()), 1u << 20);
  EXPECT_EQ(segment.page_bytes(), 4096u);
  for (uint64_t i = 0; i < segment.size_bytes(); ++i) ASSERT_EQ(segment.data()[i], std::byte{0});
}

TEST(Segment, NobodyCanResizeIt) {
  const Segment segment = CreateOrDie(Sized(8192));
  EXPECT_EQ(ftruncate(segment.fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(segment.fd(), 16384), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Segment, NobodyCanAddSeals) {
  const Segment segment = CreateOrDie(Sized(4096));
  EXPECT_EQ(fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Segment, ClosesOnExec) {
  const Segment segment = CreateOrDie(Sized(4096));
  EXPECT_NE(fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, ReadOnlyToOthersCannotBeMappedWritable) {
  SegmentOptions options = Sized(4096);
  options.read_only_to_others = true;
  const Segment segment = CreateOrDie(options);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), 0), MAP_FAILED);
  EXPECT_EQ(pwrite(segment.fd(), "x", 1, 0), -1);
}

TEST(Segment, ReadOnlyToOthersShowsWhatTheDaemonWrites) {
  SegmentOptions options = Sized(4096);
  options.read_only_to_others = true;
  const Segment segment = CreateOrDie(options);
  void* const other = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, segment.fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  segment.data()[100] = std::byte{7};
  EXPECT_EQ(static_cast<const std::byte*>(other)[100], std::byte{7});
  munmap(other, 4096);
}

TEST(Segment, HeaderSaysKindAndSize) {
  SegmentOptions options = Sized(5000);
  options.header = shm::SegmentKind::kArena;
  const Segment segment = CreateOrDie(options);
  const auto& header = *reinterpret_cast<const shm::SegmentHeader*>(segment.data());
  EXPECT_TRUE(shm::IsValidHeader(header, shm::SegmentKind::kArena, 8192));
}

TEST(Segment, UnreservedTakesMemoryOnlyWhereReserved) {
  SegmentOptions options = Sized(1 << 20);
  options.reserve = false;
  Segment segment = CreateOrDie(options);
  EXPECT_EQ(ReservedBytes(segment.fd()), 0u);
  ASSERT_TRUE(segment.Reserve(8192, 4096).ok());
  EXPECT_EQ(ReservedBytes(segment.fd()), 4096u);
}

TEST(Segment, ReleaseGivesPagesBackAndZeroes) {
  Segment segment = CreateOrDie(Sized(16384));
  segment.data()[5000] = std::byte{1};
  segment.Release(4096, 8192);
  EXPECT_EQ(ReservedBytes(segment.fd()), 8192u);
  EXPECT_EQ(segment.data()[5000], std::byte{0});
}

TEST(Segment, ImpossibleSizesAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Create(Sized(0)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Segment::Create(Sized(UINT64_MAX)).status()));
}

TEST(Segment, MoreThanTheMachineHasIsRefusedWithTheSize) {
  const absl::Status status = Segment::Create(Sized(uint64_t{1} << 50)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  const std::string text = status.ToString();
  EXPECT_NE(text.find("asked_bytes=1125899906842624"), std::string::npos) << text;
  EXPECT_NE(text.find("available_bytes="), std::string::npos) << text;
}

TEST(Segment, NoDescriptorsLeftIsResourceExhausted) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = Segment::Create(Sized(4096)).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(Segment, HugePagesWhenThereAreNone) {
  SegmentOptions options = Sized(2 << 20);
  options.huge_pages = HugePages::kRequire;
  const absl::StatusOr<Segment> required = Segment::Create(options);
  if (required.ok()) GTEST_SKIP() << "this machine has huge pages";
  EXPECT_TRUE(absl::IsResourceExhausted(required.status())) << required.status();

  options.huge_pages = HugePages::kPrefer;
  const Segment preferred = CreateOrDie(options);
  EXPECT_EQ(preferred.page_bytes(), 4096u);
  EXPECT_NE(preferred.fallback_reason(), "");
}

TEST(Segment, HugePagesWhenThereAreSome) {
  SegmentOptions options = Sized((2 << 20) + 1);
  options.huge_pages = HugePages::kRequire;
  const absl::StatusOr<Segment> segment = Segment::Create(options);
  if (!segment.ok()) GTEST_SKIP() << "this machine has no huge pages: " << segment.status();
  EXPECT_GT(segment->page_bytes(), 4096u);
  EXPECT_EQ(segment->size_bytes() % segment->page_bytes(), 0u);
  EXPECT_EQ(ReservedBytes(segment->fd()), segment->size_bytes());
  EXPECT_EQ(fcntl(segment->fd(), F_GET_SEALS) & kOurSeals, kOurSeals);
}

TEST(Segment, SmallOnesDoNotWasteAHugePage) {
  SegmentOptions options = Sized(64 << 10);
  options.huge_pages = HugePages::kPrefer;
  const Segment segment = CreateOrDie(options);
  EXPECT_EQ(segment.page_bytes(), 4096u);
  EXPECT_NE(segment.fallback_reason(), "");
}

TEST(Segment, MovingLeavesTheSourceEmpty) {
  Segment first = CreateOrDie(Sized(4096));
  std::byte* const data = first.data();
  Segment second = CreateOrDie(Sized(8192));
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size_bytes(), 4096u);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what this test is about
  EXPECT_EQ(first.fd(), -1);
}

TEST(Segment, DestructionClosesTheDescriptor) {
  int fd;
  {
    const Segment segment = CreateOrDie(Sized(4096));
    fd = segment.fd();
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

// A memfd as a client would hand it in.
UniqueFd ForeignMemfd(off_t size_bytes, bool reserve, int seals) {
  UniqueFd fd(memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_TRUE(fd.valid());
  EXPECT_EQ(ftruncate(fd.get(), size_bytes), 0);
  if (reserve) {
    EXPECT_EQ(posix_fallocate(fd.get(), 0, size_bytes), 0);
  }
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(CheckForeignSegment, AcceptsAFullySealedAndReservedMemfd) {
  const UniqueFd fd = ForeignMemfd(8192, true, kOurSeals);
  const absl::StatusOr<ForeignSegment> foreign = CheckForeignSegment(fd.get(), 8192);
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  EXPECT_EQ(foreign->size_bytes, 8192u);
  EXPECT_EQ(foreign->page_bytes, 4096u);
  EXPECT_TRUE(foreign->writable);
}

TEST(CheckForeignSegment, AcceptsOurOwn) {
  const Segment segment = CreateOrDie(Sized(4096));
  EXPECT_TRUE(CheckForeignSegment(segment.fd(), 4096).ok());
}

TEST(CheckForeignSegment, EachMissingSealIsNamed) {
  for (const auto& [seals, missing] :
       {std::pair<int, const char*>{F_SEAL_GROW | F_SEAL_SEAL, "F_SEAL_SHRINK"},
        {F_SEAL_SHRINK | F_SEAL_SEAL, "F_SEAL_GROW"},
        {F_SEAL_SHRINK | F_SEAL_GROW, "F_SEAL_SEAL"}}) {
    const UniqueFd fd = ForeignMemfd(4096, true, seals);
    const absl::Status status = CheckForeignSegment(fd.get(), 4096).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.ToString().find(missing), std::string::npos) << status;
  }
}

TEST(CheckForeignSegment, SparseMemfdIsRefused) {
  const UniqueFd fd = ForeignMemfd(8192, false, kOurSeals);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckForeignSegment(fd.get(), 8192).status()));
}

TEST(CheckForeignSegment, TooSmallIsRefused) {
  const UniqueFd fd = ForeignMemfd(4096, true, kOurSeals);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckForeignSegment(fd.get(), 4097).status()));
}

TEST(CheckForeignSegment, OtherDescriptorsAreRefused) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const UniqueFd read_end(pipe_fds[0]);
  const UniqueFd write_end(pipe_fds[1]);
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const int fd : {read_end.get(), file.get(), -1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckForeignSegment(fd, 1).status())) << fd;
  }
}

TEST(CheckForeignSegment, WriteSealedMemfdIsReadOnly) {
  const UniqueFd fd = ForeignMemfd(4096, true, kOurSeals | F_SEAL_WRITE);
  const absl::StatusOr<ForeignSegment> foreign = CheckForeignSegment(fd.get(), 4096);
  ASSERT_TRUE(foreign.ok()) << foreign.status();
  EXPECT_FALSE(foreign->writable);
}

}  // namespace
}  // namespace rdmad::memory
