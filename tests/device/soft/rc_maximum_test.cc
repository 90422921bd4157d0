// The longest message that the device promises arrives whole; one byte more is refused
// (rc_errors_test.cc).
//
// A gibibyte at each end is one mebibyte of memory mapped a thousand times, so the test is about
// counting, not memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcStatus;
using device::WrOpcode;

constexpr size_t kChunk = 1 << 20;

class RepeatedMemory {
 public:
  RepeatedMemory() : fd_(memfd_create("repeated", 0)) {
    if (fd_ < 0 || ftruncate(fd_, kChunk) != 0) std::abort();
    base_ = static_cast<std::byte*>(mmap(nullptr, kMaxMessageBytes, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (size_t at = 0; at < kMaxMessageBytes; at += kChunk) {
      if (mmap(base_ + at, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) ==
          MAP_FAILED) {
        std::abort();
      }
    }
  }
  ~RepeatedMemory() {
    munmap(base_, kMaxMessageBytes);
    close(fd_);
  }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;
  std::byte* data() const { return base_; }

 private:
  const int fd_;
  std::byte* base_;
};

class RcMaximum : public PathTest {};
RDMAD_ON_BOTH_PATHS(RcMaximum);

TEST_P(RcMaximum, LongestMessageArrives) {
  BedOptions options = Options();
  options.mtu = device::Mtu::k4096;
  options.faults.wire_format = false;
  options.config.max_window_bytes = 16 << 20;
  Bed bed(options);
  bed.network.keep_record = false;
  RepeatedMemory from, to;
  std::vector<std::unique_ptr<SoftMr>> mrs;
  for (auto [endpoint, memory] : {std::pair(&bed.a, &from), std::pair(&bed.b, &to)}) {
    auto mr = SoftMr::Create(
        *endpoint->transport, endpoint->pd,
        {memory->data(), kMaxMessageBytes, 0, device::kAccessAll & ~device::kAccessMwBind});
    ASSERT_TRUE(mr.ok());
    (*mr)->Activate(0);
    mrs.push_back(std::move(*mr));
  }
  const device::Sge half[] = {{0, kMaxMessageBytes / 2, mrs[0]->lkey()},
                              {kMaxMessageBytes / 2, kMaxMessageBytes / 2, mrs[0]->lkey()}};
  const device::Sge in{0, kMaxMessageBytes, mrs[1]->lkey()};
  uint64_t done = 0;
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead}) {
    SCOPED_TRACE(static_cast<int>(opcode));
    const bool read = opcode == WrOpcode::kRdmaRead;
    std::mt19937_64 random(done + 1);
    std::byte* const source = read ? to.data() : from.data();
    for (size_t i = 0; i < kChunk; ++i) source[i] = static_cast<std::byte>(random());
    ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = 1, .sges = {&in, 1}}, bed.network.now()),
              PostResult::kOk);
    device::SendWr wr = bed.Wr(1, opcode, nullptr);
    wr.sges = half;
    wr.remote_addr = 0;
    wr.rkey = mrs[1]->rkey();
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, ++done, 600'000'000'000));
    EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess);
    EXPECT_EQ(bed.a.sends.all.back().byte_len, kMaxMessageBytes);
    EXPECT_EQ(std::memcmp(from.data(), to.data(), kChunk), 0);
  }
  ASSERT_EQ(bed.b.receives.all.size(), 1u);
  EXPECT_EQ(bed.b.receives.all[0].byte_len, kMaxMessageBytes);
  for (auto& mr : mrs) mr->Deactivate(0);
}

}  // namespace
}  // namespace rdmad::soft
