// Which address handle a posted number names.
#include "daemon/engine/ah_port.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/engine/engine_bed.h"

namespace rdmad::engine {
namespace {

class AhPortTest : public ::testing::Test {
 protected:
  static TestQpOptions InPd(const device::Pd* pd, uint32_t doorbell = 0) {
    TestQpOptions options;
    options.pd = pd;
    options.doorbell_index = doorbell;
    options.owner_token = 100 + doorbell;
    return options;
  }
  // The number under which the next post finds `ah` in `session`.
  std::unique_ptr<AhPort> Make(TestSession& session, const device::Ah& ah, uint32_t slot_handle) {
    AhPortInit init;
    init.session = session.port.get();
    init.ah = &ah;
    init.pd = &pd_;
    init.slot_handle = slot_handle;
    std::unique_ptr<AhPort> port = bed_.proxy().CreateAhPort(init);
    bed_.Activate(*port);
    return port;
  }
  // What the device is shown for a post that names `ah_handle`.
  const device::Ah* Named(TestQp& qp, uint32_t ah_handle) {
    sdk::SendRequest request;
    request.ah_handle = ah_handle;
    EXPECT_EQ(qp.sends.PostSend(request), 0);
    qp.Ring();
    bed_.Settle();
    return qp.qp->sends.back().ah;  // there is no receive for it
  }

  EngineBed bed_;
  TestSession session_{bed_};
  TestCq cq_{bed_, session_, 64};
  testing::FakePd pd_;
  testing::FakePd other_pd_;
  testing::FakeAh ah_{&bed_.path, {}};
};

TEST_F(AhPortTest, PostFindsItsAddressHandle) {
  TestQp qp(bed_, session_, cq_, InPd(&pd_));
  const std::unique_ptr<AhPort> port = Make(session_, ah_, 5);
  EXPECT_EQ(Named(qp, 5), &ah_);
  EXPECT_EQ(Named(qp, 0), nullptr);
  bed_.Deactivate(*port);
}

TEST_F(AhPortTest, NumbersOfNobodyFindNothing) {
  TestQp qp(bed_, session_, cq_, InPd(&pd_));
  const std::unique_ptr<AhPort> port = Make(session_, ah_, 5);
  for (uint32_t number : {0u, 1u, 4u, 6u, 512u, 513u, kMaxAhs, kMaxAhs + 1, UINT32_MAX}) {
    EXPECT_EQ(Named(qp, number), nullptr) << number;
  }
  bed_.Deactivate(*port);
}

TEST_F(AhPortTest, FirstAndLastNumbersWork) {
  TestQp qp(bed_, session_, cq_, InPd(&pd_));
  for (uint32_t number : {1u, 512u, 513u, kMaxAhs}) {
    const std::unique_ptr<AhPort> port = Make(session_, ah_, number);
    EXPECT_EQ(Named(qp, number), &ah_) << number;
    bed_.Deactivate(*port);
    EXPECT_EQ(Named(qp, number), nullptr) << number;
  }
}

TEST_F(AhPortTest, NumberCanBeUsedAgain) {
  TestQp qp(bed_, session_, cq_, InPd(&pd_));
  const testing::FakeAh second(&bed_.path, {});
  std::unique_ptr<AhPort> port = Make(session_, ah_, 7);
  bed_.Deactivate(*port);
  port = Make(session_, second, 7);
  EXPECT_EQ(Named(qp, 7), &second);
  bed_.Deactivate(*port);
}

TEST_F(AhPortTest, AnotherSessionsNumbersMeanNothing) {
  TestSession other(bed_, 2);
  TestCq other_cq(bed_, other, 64);
  TestQp qp(bed_, other, other_cq, InPd(&pd_));
  const std::unique_ptr<AhPort> port = Make(session_, ah_, 5);
  EXPECT_EQ(Named(qp, 5), nullptr);
  bed_.Deactivate(*port);
}

TEST_F(AhPortTest, AnotherPdsAddressHandleIsNotShownToTheDevice) {
  TestQp qp(bed_, session_, cq_, InPd(&other_pd_));
  const std::unique_ptr<AhPort> port = Make(session_, ah_, 5);
  EXPECT_EQ(Named(qp, 5), nullptr) << "it may be of another device";
  bed_.Deactivate(*port);
}

}  // namespace
}  // namespace rdmad::engine
