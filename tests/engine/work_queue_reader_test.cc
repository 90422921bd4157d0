#include "daemon/engine/work_queue_reader.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/sdk/ring/work_queue_writer.h"
#include "daemon/base/check.h"

namespace rdmad::engine {
namespace {

constexpr uint32_t kSlots = 16;

// A ring whose memory ends at unmapped pages on both sides, so that a read outside of it is a
// fault.
class GuardedRing {
 public:
  explicit GuardedRing(uint32_t slot_count) : slot_count_(slot_count) {
    const size_t bytes = shm::WorkQueueBytes(slot_count);
    mapped_bytes_ = (bytes + kPage - 1) / kPage * kPage + 2 * kPage;
    map_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    RD_CHECK(map_ != MAP_FAILED);
    mprotect(map_, kPage, PROT_NONE);
    mprotect(map_ + mapped_bytes_ - kPage, kPage, PROT_NONE);
    // The slots end where the mapping does; a header before the page's start cannot be had as well.
    ring_ = map_ + mapped_bytes_ - kPage - bytes;
  }
  ~GuardedRing() { munmap(map_, mapped_bytes_); }
  GuardedRing(const GuardedRing&) = delete;
  GuardedRing& operator=(const GuardedRing&) = delete;

  std::byte* data() { return ring_; }
  shm::WorkQueueHeader* header() { return reinterpret_cast<shm::WorkQueueHeader*>(ring_); }
  shm::WorkSlot& slot(uint32_t index) {
    return reinterpret_cast<shm::WorkSlot*>(header() + 1)[index % slot_count_];
  }
  size_t bytes() const { return shm::WorkQueueBytes(slot_count_); }
  bool Holds(std::span<const std::byte> piece) {
    return piece.empty() || (piece.data() >= ring_ + sizeof(shm::WorkQueueHeader) &&
                             piece.data() + piece.size() <= ring_ + bytes());
  }

 private:
  static constexpr size_t kPage = 4096;
  const uint32_t slot_count_;
  size_t mapped_bytes_ = 0;
  std::byte* map_ = nullptr;
  std::byte* ring_ = nullptr;
};

class WorkQueueReaderTest : public ::testing::Test {
 protected:
  // Both ends start at `index`, as after so many slots.
  void StartAt(uint32_t index) {
    ring_.header()->tail.store(index);
    reader_.Forget();
    writer_.emplace(ring_.header(), kSlots,
                    sdk::WorkQueueLimits{2, shm::kMaxSge, shm::kMaxInlineBytes});
  }

  ReadResult NextSend() {
    wr_ = {};
    return reader_.NextSend(scratch_, wr_);
  }

  GuardedRing ring_{kSlots};
  WorkQueueReader reader_{ring_.data(), kSlots};
  std::optional<sdk::WorkQueueWriter> writer_;
  WrScratch scratch_;
  device::SendWr wr_{};
};

// Where a WR may start so that it wraps in every possible way, the index itself included.
std::vector<uint32_t> Starts() {
  std::vector<uint32_t> starts;
  for (uint32_t i = 0; i < kSlots; ++i) starts.push_back(i);
  for (uint32_t i = 1; i <= kSlots; ++i) starts.push_back(0u - i);
  return starts;
}

std::vector<std::byte> Joined(const device::InlineData& data) {
  std::vector<std::byte> bytes;
  for (const auto& piece : data.pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

TEST_F(WorkQueueReaderTest, WithoutARingIsAlwaysEmpty) {
  WorkQueueReader none;
  EXPECT_TRUE(none.Refresh());
  EXPECT_EQ(none.NextSend(scratch_, wr_), ReadResult::kEmpty);
  none.PublishHead();
  none.Forget();
}

TEST_F(WorkQueueReaderTest, ReadsEveryFieldThatWasPosted) {
  StartAt(0);
  sdk::SendRequest request;
  request.wr_id = 0x1122334455667788;
  request.opcode = shm::WorkOpcode::kCompareSwap;
  request.flags = shm::kWorkSignaled | shm::kWorkFence;
  request.imm_be = 1;
  request.remote_addr = 2;
  request.rkey = 3;
  request.compare_add = 4;
  request.swap = 5;
  request.ah_handle = 6;
  request.bind_lkey = 9;
  request.remote_qpn = 7;
  request.remote_qkey = 8;
  ASSERT_EQ(writer_->PostSend(request), 0);
  writer_->Publish();
  ASSERT_TRUE(reader_.Refresh());
  ASSERT_EQ(NextSend(), ReadResult::kOk);
  EXPECT_EQ(wr_.wr_id, request.wr_id);
  EXPECT_EQ(wr_.opcode, request.opcode);
  EXPECT_EQ(wr_.flags, request.flags);
  EXPECT_EQ(wr_.imm_be, 1u);
  EXPECT_EQ(wr_.remote_addr, 2u);
  EXPECT_EQ(wr_.rkey, 3u);
  EXPECT_EQ(wr_.compare_add, 4u);
  EXPECT_EQ(wr_.swap, 5u);
  EXPECT_EQ(reader_.ah_handle(), 6u);
  EXPECT_EQ(wr_.bind_lkey, 9u);
  EXPECT_EQ(wr_.remote_qpn, 7u);
  EXPECT_EQ(wr_.remote_qkey, 8u);
  EXPECT_EQ(NextSend(), ReadResult::kEmpty);
}

TEST_F(WorkQueueReaderTest, AnyNumberOfSgesAtAnyPlaceInTheRing) {
  for (const uint32_t start : Starts()) {
    for (uint32_t num_sge = 0; num_sge <= shm::kMaxSge; ++num_sge) {
      SCOPED_TRACE(std::to_string(start) + "/" + std::to_string(num_sge));
      StartAt(start);
      std::vector<shm::WorkSge> sges(num_sge);
      for (uint32_t i = 0; i < num_sge; ++i) sges[i] = {start + i * 1000ull, i, i + 7};
      sdk::SendRequest request;
      request.sges = sges;
      ASSERT_EQ(writer_->PostSend(request), 0);
      writer_->Publish();
      ASSERT_TRUE(reader_.Refresh());
      ASSERT_EQ(NextSend(), ReadResult::kOk);
      ASSERT_EQ(wr_.sges.size(), num_sge);
      for (uint32_t i = 0; i < num_sge; ++i) {
        EXPECT_EQ(wr_.sges[i].addr, sges[i].addr);
        EXPECT_EQ(wr_.sges[i].length_bytes, sges[i].length_bytes);
        EXPECT_EQ(wr_.sges[i].lkey, sges[i].lkey);
      }
      EXPECT_EQ(reader_.unread_slots(), 0u);
    }
  }
}

TEST_F(WorkQueueReaderTest, InlineBytesOfAnySizeAtAnyPlaceInTheRing) {
  std::vector<std::byte> bytes(shm::kMaxInlineBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (const uint32_t start : Starts()) {
    for (const uint32_t size : {0u, 1u, 63u, 64u, 65u, 191u, 192u, 193u, 500u, 959u, 960u}) {
      SCOPED_TRACE(std::to_string(start) + "/" + std::to_string(size));
      StartAt(start);
      // Two SGEs, gathered.
      const uint32_t first = size / 3;
      const shm::WorkSge sges[] = {
          {reinterpret_cast<uintptr_t>(bytes.data()), first, 0},
          {reinterpret_cast<uintptr_t>(bytes.data()) + first, size - first, 0}};
      sdk::SendRequest request;
      request.flags = shm::kWorkInline;
      request.sges = sges;
      ASSERT_EQ(writer_->PostSend(request), 0);
      writer_->Publish();
      ASSERT_TRUE(reader_.Refresh());
      ASSERT_EQ(NextSend(), ReadResult::kOk);
      EXPECT_EQ(wr_.inline_bytes, size);
      EXPECT_TRUE(wr_.sges.empty());
      for (const auto& piece : wr_.inline_data.pieces) EXPECT_TRUE(ring_.Holds(piece));
      const std::vector<std::byte> read = Joined(wr_.inline_data);
      ASSERT_EQ(read.size(), size);
      EXPECT_TRUE(std::equal(read.begin(), read.end(), bytes.begin()));
      EXPECT_EQ(reader_.unread_slots(), 0u);
    }
  }
}

TEST_F(WorkQueueReaderTest, ReceivesHaveIdAndSges) {
  StartAt(14);
  std::vector<shm::WorkSge> sges(9, shm::WorkSge{1, 2, 3});
  ASSERT_EQ(writer_->PostRecv(55, sges), 0);
  writer_->Publish();
  ASSERT_TRUE(reader_.Refresh());
  device::RecvWr recv{};
  ASSERT_EQ(reader_.NextRecv(scratch_, recv), ReadResult::kOk);
  EXPECT_EQ(recv.wr_id, 55u);
  ASSERT_EQ(recv.sges.size(), 9u);
  EXPECT_EQ(recv.sges[8].lkey, 3u);
}

TEST_F(WorkQueueReaderTest, SeesOnlyWhatRefreshSaw) {
  StartAt(0);
  ASSERT_EQ(writer_->PostSend({}), 0);
  writer_->Publish();
  ASSERT_TRUE(reader_.Refresh());
  ASSERT_EQ(writer_->PostSend({}), 0);
  writer_->Publish();
  EXPECT_EQ(NextSend(), ReadResult::kOk);
  EXPECT_EQ(NextSend(), ReadResult::kEmpty);
  ASSERT_TRUE(reader_.Refresh());
  EXPECT_EQ(NextSend(), ReadResult::kOk);
}

TEST_F(WorkQueueReaderTest, PublishesItsHead) {
  StartAt(5);
  ASSERT_EQ(writer_->PostSend({}), 0);
  writer_->Publish();
  ASSERT_TRUE(reader_.Refresh());
  ASSERT_EQ(NextSend(), ReadResult::kOk);
  EXPECT_EQ(ring_.header()->head.load(), 5u);
  reader_.PublishHead();
  EXPECT_EQ(ring_.header()->head.load(), 6u);
}

TEST_F(WorkQueueReaderTest, AFullRingIsFine) {
  StartAt(3);
  ring_.header()->tail.store(3 + kSlots);
  ASSERT_TRUE(reader_.Refresh());
  for (uint32_t i = 0; i < kSlots; ++i) EXPECT_EQ(NextSend(), ReadResult::kOk);
  EXPECT_EQ(NextSend(), ReadResult::kEmpty);
}

TEST_F(WorkQueueReaderTest, ATailThatRunsAwayOrBackIsCorruptUntilForget) {
  for (const uint32_t nonsense : {3u + kSlots + 1, 2u, 0x80000003u, 0u}) {
    SCOPED_TRACE(nonsense);
    StartAt(3);
    ring_.header()->tail.store(nonsense);
    EXPECT_FALSE(reader_.Refresh());
    ring_.header()->tail.store(3);
    EXPECT_FALSE(reader_.Refresh()) << "it does not heal by itself";
    EXPECT_EQ(NextSend(), ReadResult::kCorrupt);
    reader_.Forget();
    EXPECT_TRUE(reader_.Refresh());
    EXPECT_EQ(NextSend(), ReadResult::kEmpty);
  }
}

TEST_F(WorkQueueReaderTest, ATailBehindWhatWasAlreadySeenIsCorrupt) {
  StartAt(0);
  ring_.header()->tail.store(8);
  ASSERT_TRUE(reader_.Refresh());
  ring_.header()->tail.store(5);
  EXPECT_FALSE(reader_.Refresh());
}

TEST_F(WorkQueueReaderTest, SlotsBeyondTheTailAreCorrupt) {
  StartAt(0);
  ring_.slot(0) = {};
  ring_.slot(0).extra_slots = 2;
  ring_.slot(0).num_sge = shm::kMaxSge;
  ring_.header()->tail.store(2);
  ASSERT_TRUE(reader_.Refresh());
  EXPECT_EQ(NextSend(), ReadResult::kCorrupt);
  EXPECT_FALSE(reader_.Refresh());
}

TEST_F(WorkQueueReaderTest, TooManyExtraSlotsAreCorrupt) {
  StartAt(0);
  ring_.slot(0) = {};
  ring_.slot(0).extra_slots = 8;
  ring_.header()->tail.store(kSlots);
  ASSERT_TRUE(reader_.Refresh());
  EXPECT_EQ(NextSend(), ReadResult::kCorrupt);
}

struct MalformedCase {
  const char* name;
  std::function<void(shm::WorkSlot&)> spoil;
};

TEST_F(WorkQueueReaderTest, MalformedSendsAreNamedAndSkipped) {
  const MalformedCase cases[] = {
      {"unknown opcode", [](auto& s) { s.opcode = 10; }},
      {"opcode 255", [](auto& s) { s.opcode = 255; }},
      {"unknown flag", [](auto& s) { s.flags = 1 << 4; }},
      {"too many SGEs", [](auto& s) { s.num_sge = shm::kMaxSge + 1; }},
      {"SGEs without their slots", [](auto& s) { s.num_sge = 5; }},
      {"slots without SGEs", [](auto& s) { s.extra_slots = 1; }},
      {"SGEs with inline", [](auto& s) { s.flags = shm::kWorkInline, s.num_sge = 1; }},
      {"too many inline bytes",
       [](auto& s) { s.flags = shm::kWorkInline, s.inline_bytes = 961, s.extra_slots = 7; }},
      {"inline bytes that overflow",
       [](auto& s) { s.flags = shm::kWorkInline, s.inline_bytes = 0xffffffff, s.extra_slots = 7; }},
      {"inline bytes without their slots",
       [](auto& s) { s.flags = shm::kWorkInline, s.inline_bytes = 65; }},
      {"inline read", [](auto& s) { s.flags = shm::kWorkInline, s.opcode = 5; }},
  };
  for (const MalformedCase& c : cases) {
    SCOPED_TRACE(c.name);
    StartAt(0);
    for (uint32_t i = 0; i < kSlots; ++i) ring_.slot(i) = {};
    ring_.slot(0).wr_id = 77;
    c.spoil(ring_.slot(0));
    const uint32_t next = 1u + ring_.slot(0).extra_slots;
    ring_.slot(next).wr_id = 78;
    ring_.header()->tail.store(next + 1);
    ASSERT_TRUE(reader_.Refresh());
    EXPECT_EQ(NextSend(), ReadResult::kMalformed);
    EXPECT_EQ(wr_.wr_id, 77u);
    EXPECT_EQ(NextSend(), ReadResult::kOk);
    EXPECT_EQ(wr_.wr_id, 78u);
  }
}

TEST_F(WorkQueueReaderTest, MalformedReceivesAreNamed) {
  const MalformedCase cases[] = {
      {"too many SGEs", [](auto& s) { s.num_sge = 200; }},
      {"SGEs without their slots", [](auto& s) { s.num_sge = 13, s.extra_slots = 1; }},
      {"inline", [](auto& s) { s.flags = shm::kWorkInline; }},
  };
  for (const MalformedCase& c : cases) {
    SCOPED_TRACE(c.name);
    StartAt(0);
    for (uint32_t i = 0; i < kSlots; ++i) ring_.slot(i) = {};
    ring_.slot(0).wr_id = 9;
    c.spoil(ring_.slot(0));
    ring_.header()->tail.store(8);
    ASSERT_TRUE(reader_.Refresh());
    device::RecvWr recv{};
    EXPECT_EQ(reader_.NextRecv(scratch_, recv), ReadResult::kMalformed);
    EXPECT_EQ(recv.wr_id, 9u);
  }
}

// Fills the ring with words that are often nearly right.
void Scribble(std::byte* ring, size_t bytes, std::mt19937_64& random, int count) {
  uint64_t* const words = reinterpret_cast<uint64_t*>(ring);
  for (int i = 0; i < count; ++i) {
    const size_t at = random() % (bytes / 8);
    uint64_t value = random();
    if (random() % 2 != 0) value &= 0x0307030f0f07ffff;  // small numbers in the small fields
    __atomic_store_n(&words[at], value, __ATOMIC_RELAXED);
  }
  // A tail that is often plausible.
  if (random() % 4 != 0) {
    auto* const header = reinterpret_cast<shm::WorkQueueHeader*>(ring);
    const uint32_t tail = header->head.load(std::memory_order_relaxed) + random() % (kSlots + 1);
    header->tail.store(tail, std::memory_order_release);
  }
}

// Reads until the end or nonsense; everything that it is given must be usable.
uint64_t ReadAll(WorkQueueReader& reader, GuardedRing& ring, WrScratch& scratch) {
  uint64_t sum = 0;
  if (!reader.Refresh()) {
    reader.Forget();
    return 0;
  }
  EXPECT_LE(reader.unread_slots(), kSlots);
  for (uint32_t i = 0; i <= kSlots; ++i) {
    device::SendWr wr{};
    const ReadResult result = reader.NextSend(scratch, wr);
    if (result == ReadResult::kEmpty) break;
    EXPECT_LT(i, kSlots) << "never more WRs than slots";
    if (result == ReadResult::kCorrupt) {
      reader.Forget();
      break;
    }
    if (result == ReadResult::kMalformed) continue;
    EXPECT_LE(wr.sges.size(), shm::kMaxSge);
    EXPECT_LE(wr.opcode, shm::WorkOpcode::kBindMw);
    uint32_t inline_bytes = 0;
    for (const auto& piece : wr.inline_data.pieces) {
      EXPECT_TRUE(ring.Holds(piece));
      inline_bytes += static_cast<uint32_t>(piece.size());
      for (size_t at = 0; at + 8 <= piece.size(); at += 8) {
        sum +=
            __atomic_load_n(reinterpret_cast<const uint64_t*>(piece.data() + at), __ATOMIC_RELAXED);
      }
    }
    EXPECT_EQ(inline_bytes, wr.inline_bytes);
    for (const device::Sge& sge : wr.sges) sum += sge.addr;
  }
  reader.PublishHead();
  return sum;
}

TEST(WorkQueueReaderFuzz, GarbageNeverLeadsOutOfTheRing) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    GuardedRing ring(kSlots);
    WorkQueueReader reader(ring.data(), kSlots);
    WrScratch scratch;
    for (int round = 0; round < 200; ++round) {
      Scribble(ring.data(), ring.bytes(), random, 1 + static_cast<int>(random() % 40));
      ReadAll(reader, ring, scratch);
    }
  }
}

TEST(WorkQueueReaderFuzz, AWriterThatScribblesMeanwhileNeverLeadsOutOfTheRing) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    GuardedRing ring(kSlots);
    WorkQueueReader reader(ring.data(), kSlots);
    WrScratch scratch;
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      std::mt19937_64 random(seed);
      while (!stop.load(std::memory_order_relaxed)) {
        Scribble(ring.data(), ring.bytes(), random, 20);
      }
    });
    for (int round = 0; round < 100000; ++round) ReadAll(reader, ring, scratch);
    stop.store(true, std::memory_order_relaxed);
    writer.join();
  }
}

}  // namespace
}  // namespace rdmad::engine
