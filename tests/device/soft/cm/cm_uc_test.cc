// Connections of UC queue pairs: the REQ says so, both sides' QPs get what UC has, and a QP of the
// other type is refused.
#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

using device::QpType;

class CmUc : public ::testing::Test {
 protected:
  static device::ConnParam Of(uint32_t qpn, QpType type) {
    device::ConnParam param = Param(qpn, {}, 4, 4);
    param.qp_type = type;
    return param;
  }
  void Connect(QpType active, std::function<void(TestId&)> on_request) {
    ListenOn(&server_, Address("0.0.0.0:7000"), std::move(on_request));
    ConnectTo(&client_, Address("10.0.0.2:7000"), Of(0x11, active));
    ASSERT_TRUE(net_.Run());
  }
  const wire::CmReq& Req() {
    return std::get<wire::CmReq>(net_.Last(wire::CmAttribute::kReq)->message);
  }

  TestNet net_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_};
  TestId client_{&a_};
};

TEST_F(CmUc, BothSidesQpsGetWhatUcHasAndNoMore) {
  ASSERT_NO_FATAL_FAILURE(Connect(
      QpType::kUc, [](TestId& request) { EXPECT_TRUE(request->Accept(Of(0x22, QpType::kUc)).ok()); }));
  EXPECT_EQ(Req().transport, wire::CmTransport::kUc);
  EXPECT_EQ(server_.events.at(0).param.qp_type, QpType::kUc);
  ASSERT_STREQ(client_->state_name(), "established") << client_.History();
  using namespace device;  // NOLINT: attribute names
  for (TestId* id : {&client_, server_.requests.at(0).get()}) {
    const QpAttr init = (*id)->InitQpAttr(QpState::kInit).value();
    EXPECT_EQ(init.access_flags, uint32_t{kAccessRemoteWrite});
    const QpAttr rtr = (*id)->InitQpAttr(QpState::kRtr).value();
    EXPECT_EQ(rtr.mask, uint32_t{kQpAttrState | kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn |
                                 kQpAttrRqPsn});
    const QpAttr rts = (*id)->InitQpAttr(QpState::kRts).value();
    EXPECT_EQ(rts.mask, uint32_t{kQpAttrState | kQpAttrSqPsn});
  }
}

TEST_F(CmUc, WhoeverSaysNothingAcceptsAsAsked) {
  ASSERT_NO_FATAL_FAILURE(Connect(QpType::kUc, AcceptIt));
  EXPECT_STREQ(client_->state_name(), "established") << client_.History();
}

TEST_F(CmUc, AQpOfTheOtherTypeIsRefusedAndThePeerHearsWhy) {
  for (const QpType type : {QpType::kUc, QpType::kRc}) {
    TestId server(&b_), client(&a_);
    const QpType other = type == QpType::kUc ? QpType::kRc : QpType::kUc;
    ListenOn(&server, Address("0.0.0.0:7000"), [&](TestId& request) {
      EXPECT_EQ(request->Accept(Of(0x22, other)).code(), absl::StatusCode::kInvalidArgument);
    });
    ConnectTo(&client, Address("10.0.0.2:7000"), Of(0x11, type));
    ASSERT_TRUE(net_.Run());
    ASSERT_EQ(client.Count(CmEventType::kRejected), 1) << client.History();
    EXPECT_EQ(client.Find(CmEventType::kRejected)->status,
              static_cast<int>(wire::RejReason::kInvalidTransport));
  }
}

TEST_F(CmUc, DatagramQpsConnectNowhere) {
  ASSERT_TRUE(client_->ResolveAddr(SocketAddress(), Address("10.0.0.2:7000"), 1000).ok());
  net_.RunFor(kMs);
  ASSERT_TRUE(client_->ResolveRoute(1000).ok());
  net_.RunFor(kMs);
  EXPECT_EQ(client_->Connect(Of(0x11, QpType::kUd)).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rdmad::soft
