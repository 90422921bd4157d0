// What an application may have: its own limits do not matter, the daemon's do, and whoever runs the
// host finds in the log which one somebody met.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "tests/integration/testbed.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr size_t kPoolBytes = size_t{256} << 20;

class LimitsTest : public LoopbackTest {
 protected:
  void SetUp() override {
    ASSERT_OK(StartDaemon(
        0, {.log_level = "info", .more_config = "[session_limits]\nmax_pool_bytes = 268435456\n"}));
    const rlimit small{64 << 10, 64 << 10};  // the application's
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &small), 0);
  }
};

TEST_F(LimitsTest, AnApplicationNeedsNoLockedMemoryAndItsQuotaIsNamedInTheLog) {
  ASSERT_OK_AND_ASSIGN(const Client client, AttachTo(Daemon(0), "greedy"));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client, kPoolBytes));
  ASSERT_OK_AND_ASSIGN(const ProtectionDomain pd, ProtectionDomain::Alloc(client, 0));
  ASSERT_OK_AND_ASSIGN(Buffer buffer, pool.Allocate(kPoolBytes));
  EXPECT_OK(pd.RegMsgs(buffer.data(), kPoolBytes));

  const absl::Status refused = Pool::Create(client, 4096).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const std::string log = Daemon(0).Log();
  const size_t line = log.find("call refused");
  ASSERT_NE(line, std::string::npos) << log;
  for (const std::string& what :
       {std::string("limit=max_pool_bytes value=268435456 in_use=268435456 asked=4096"),
        "pid=" + std::to_string(::getpid()), "uid=" + std::to_string(::getuid())}) {
    EXPECT_NE(log.find(what, line), std::string::npos) << what << "\n" << log.substr(line, 400);
  }
}

}  // namespace
}  // namespace rdmad::testing
