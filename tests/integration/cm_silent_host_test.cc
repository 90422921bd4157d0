// Case 3, the slow part: a host that never answers. The CM repeats its request as the kernel's
// does, which takes most of a minute.
#include <gtest/gtest.h>

#include <cerrno>

#include "absl/time/clock.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

class CmSilentHostTest : public LoopbackTest {};

TEST_F(CmSilentHostTest, AHostThatDoesNotAnswerIsUnreachableWithATimeout) {
  ASSERT_OK(StartDaemon(0));
  ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0)));
  // On this loopback address nobody has the port: datagrams vanish.
  ASSERT_OK_AND_ASSIGN(const Address peer, Address::Parse("127.0.0.77:9"));
  ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client, peer));
  ASSERT_OK(active.id->CreateQp(nullptr, {}));
  ASSERT_OK(active.id->Connect());

  ASSERT_OK_AND_ASSIGN(auto event,
                       ExpectEvent(*active.channel, CmEventType::kUnreachable, absl::Seconds(90)));

  EXPECT_EQ(event->status(), -ETIMEDOUT);
  const std::string text = event->ToStatus().ToString();
  EXPECT_NE(text.find("127.0.0.77:9"), std::string::npos) << text;
  EXPECT_NE(text.find(active.id->local_addr().ToString()), std::string::npos) << text;
}

}  // namespace
}  // namespace rdmad::testing
