// Two applications exchange bytes through real daemons: every operation, over IPv4, over IPv6, and
// within one daemon, in the sizes at which something changes.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kMtuBytes = 4096;  // of the loopback interface
constexpr uint32_t kLargest = 64 << 20;
constexpr uint32_t kLargestOfRxe = 8 << 20;

// Around empty, the padding of a packet to four bytes, the MTU, what one batch of the kernel holds,
// and far more.
const std::vector<uint32_t> kSmallerSizes = {
    0,
    1,
    2,
    3,
    4,
    5,
    kMtuBytes - 1,
    kMtuBytes,
    kMtuBytes + 1,
    65535,
    65536,
    64 * kMtuBytes + 1,
    1 << 20,
};

struct Path {
  const char* name;
  bool same_daemon;
  bool ipv6;
};
void PrintTo(const Path& path, std::ostream* out) {
  *out << path.name;
}

class BasicTest : public LoopbackTest, public ::testing::WithParamInterface<Path> {
 protected:
  void SetUp() override {
    const Path& path = GetParam();
    const int passive = path.same_daemon ? 0 : 1;
    const std::string address = path.ipv6 ? Ipv6(passive) : Ipv4(passive);
    if (address.empty()) GTEST_SKIP() << EnterPrivateNetwork().message();
    ASSERT_OK(StartDaemon(0, {.log_level = "info"}));
    if (!path.same_daemon) {
      ASSERT_OK(StartDaemon(1, {.log_level = "info"}));
    }
    ASSERT_OK_AND_ASSIGN(Client active, AttachTo(Daemon(0), "active"));
    ASSERT_OK_AND_ASSIGN(Client listening, AttachTo(Daemon(passive), "passive"));
    EndpointOptions options;
    options.max_recv_bytes = largest_;
    options.recv_depth = 2;
    ASSERT_OK_AND_ASSIGN(Connection connection,
                         ConnectApps(active, listening, address, options, options));
    connection_ = std::make_unique<Connection>(std::move(connection));
    ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(active, largest_ + 4096));
    pool_ = std::make_unique<Pool>(pool);
    ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(listening, largest_ + 4096));
    peer_pool_ = std::make_unique<Pool>(peer_pool);
  }

  // Of at least one byte, so that there is one; resized to `size`.
  static absl::StatusOr<Buffer> Allocate(Pool& pool, uint32_t size) {
    absl::StatusOr<Buffer> buffer = pool.Allocate(std::max(size, 1u));
    if (buffer.ok()) buffer->resize(size);
    return buffer;
  }

  std::vector<uint32_t> Sizes() const {
    std::vector<uint32_t> sizes = kSmallerSizes;
    sizes.push_back(largest_);
    return sizes;
  }

  const uint32_t largest_ = OnVerbs() ? kLargestOfRxe : kLargest;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Pool> peer_pool_;
};

TEST_P(BasicTest, SendsArriveWholeAndInOrder) {
  // Sending waits for a receive that is posted only after an earlier message was taken.
  std::thread sender([&] {
    for (const uint32_t size : Sizes()) {
      ASSERT_OK_AND_ASSIGN(Buffer buffer, Allocate(*pool_, size));
      FillPattern(buffer.bytes(), size);
      ASSERT_OK(connection_->active.Send(std::move(buffer)));
      // Its memory is free again when the peer has it.
      ASSERT_OK(connection_->active.Flush(absl::Seconds(60)));
    }
  });
  for (const uint32_t size : Sizes()) {
    absl::StatusOr<Buffer> buffer = connection_->passive.Receive(absl::Seconds(60));
    EXPECT_OK(buffer);
    if (!buffer.ok()) break;
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(PatternMismatch(buffer->bytes(), size), std::nullopt) << "size " << size;
  }
  sender.join();
}

TEST_P(BasicTest, ImmediateDataArrivesWithItsMessage) {
  for (const uint32_t imm : {0u, 1u, 0x12345678u, 0xffffffffu}) {
    ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateCopy("text"));
    ASSERT_OK(connection_->active.Send(std::move(buffer), imm));
    ASSERT_OK_AND_ASSIGN(Buffer received, connection_->passive.Receive(absl::Seconds(10)));
    EXPECT_EQ(received.text(), "text");
    ASSERT_TRUE(received.has_imm());
    EXPECT_EQ(received.imm(), imm);
  }
}

TEST_P(BasicTest, WritesChangeExactlyTheRangeThatTheyName) {
  constexpr uint32_t kMargin = 16;
  for (const uint32_t size : Sizes()) {
    const uint32_t all = size + 2 * kMargin;
    ASSERT_OK_AND_ASSIGN(Buffer target, Allocate(*peer_pool_, all));
    FillPattern(target.bytes(), 1);
    ASSERT_OK_AND_ASSIGN(MemoryRegion region,
                         connection_->passive.Share(target, kAccessRemoteWrite));
    ASSERT_OK_AND_ASSIGN(Buffer source, Allocate(*pool_, size));
    FillPattern(source.bytes(), size + 2);

    ASSERT_OK(connection_->active.Write(source, Endpoint::Describe(region), kMargin));

    const std::span<std::byte> written = target.bytes();
    EXPECT_EQ(PatternMismatch(written.subspan(kMargin, size), size + 2), std::nullopt)
        << "size " << size;
    std::vector<std::byte> untouched(all);
    FillPattern(untouched, 1);
    EXPECT_TRUE(std::equal(untouched.begin(), untouched.begin() + kMargin, written.begin()));
    EXPECT_TRUE(std::equal(untouched.end() - kMargin, untouched.end(), written.end() - kMargin));
  }
}

TEST_P(BasicTest, ReadsFetchExactlyTheRangeThatTheyName) {
  for (const uint32_t size : Sizes()) {
    ASSERT_OK_AND_ASSIGN(Buffer source, Allocate(*peer_pool_, size + 8));
    FillPattern(source.bytes().subspan(8), size + 3);
    ASSERT_OK_AND_ASSIGN(MemoryRegion region,
                         connection_->passive.Share(source, kAccessRemoteRead));
    ASSERT_OK_AND_ASSIGN(Buffer target, Allocate(*pool_, size));

    ASSERT_OK(connection_->active.Read(target, Endpoint::Describe(region), 8));

    EXPECT_EQ(PatternMismatch(target.bytes(), size + 3), std::nullopt) << "size " << size;
  }
}

TEST_P(BasicTest, AWriteWithImmediateDataWakesTheReceiver) {
  ASSERT_OK_AND_ASSIGN(Buffer target, peer_pool_->Allocate(100'000));
  ASSERT_OK_AND_ASSIGN(MemoryRegion region, connection_->passive.Share(target, kAccessRemoteWrite));
  ASSERT_OK_AND_ASSIGN(Buffer source, pool_->Allocate(100'000));
  FillPattern(source.bytes(), 9);

  ASSERT_OK(connection_->active.Write(source, Endpoint::Describe(region), 0, 77));

  ASSERT_OK_AND_ASSIGN(Buffer notice, connection_->passive.Receive(absl::Seconds(10)));
  EXPECT_TRUE(notice.empty());
  EXPECT_EQ(notice.imm(), 77u);
  EXPECT_EQ(PatternMismatch(target.bytes(), 9), std::nullopt);
}

TEST_P(BasicTest, AWriteWithoutTheRightIsRefusedAndChangesNothing) {
  ASSERT_OK_AND_ASSIGN(Buffer target, peer_pool_->Allocate(4096));
  FillPattern(target.bytes(), 4);
  ASSERT_OK_AND_ASSIGN(MemoryRegion region, connection_->passive.Share(target, kAccessRemoteRead));
  ASSERT_OK_AND_ASSIGN(Buffer source, pool_->Allocate(4096));

  const absl::Status status = connection_->active.Write(source, Endpoint::Describe(region));

  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(PatternMismatch(target.bytes(), 4), std::nullopt);
}

TEST_P(BasicTest, AKeyThatWasTakenBackOpensNothing) {
  ASSERT_OK_AND_ASSIGN(Buffer target, peer_pool_->Allocate(4096));
  FillPattern(target.bytes(), 5);
  ASSERT_OK_AND_ASSIGN(MemoryRegion region, connection_->passive.Share(target, kAccessRemoteWrite));
  const RemoteBuffer remote = Endpoint::Describe(region);
  ASSERT_OK(region.Dereg());
  ASSERT_OK_AND_ASSIGN(Buffer source, pool_->Allocate(4096));

  const absl::Status status = connection_->active.Write(source, remote);

  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(PatternMismatch(target.bytes(), 5), std::nullopt);
}

TEST_P(BasicTest, ClosingLetsThePeerReceiveEverythingFirst) {
  for (int i = 0; i < 2; ++i) ASSERT_OK(connection_->active.SendCopy("last words"));
  ASSERT_OK(connection_->active.Close());

  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(Buffer received, connection_->passive.Receive(absl::Seconds(10)));
    EXPECT_EQ(received.text(), "last words");
  }
  const absl::StatusOr<Buffer> end = connection_->passive.Receive(absl::Seconds(10));
  EXPECT_TRUE(IsClosed(end.status())) << end.status();
}

INSTANTIATE_TEST_SUITE_P(Paths, BasicTest,
                         ::testing::Values(Path{"Ipv4", false, false}, Path{"Ipv6", false, true},
                                           Path{"SameDaemonIpv4", true, false},
                                           Path{"SameDaemonIpv6", true, true}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace rdmad::testing
