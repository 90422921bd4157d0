// Flow label, traffic class and hop limit of an address vector, on the wire between our soft device and the kernel's, and in
// the header that a datagram's receiver gets.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <tuple>

#include "rdmad/rdmad.h"
#include "tests/support/status_testing.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/rxe_verbs_bed.h"
#include "tests/vm/sniffer.h"

namespace rdmad::testing {
namespace {

constexpr Route kRoute = {.flow_label = 0xabcde, .traffic_class = 0x48, .hop_limit = 33};
constexpr size_t kMessage = 100;
constexpr uint8_t kSendOnly = 0x04;  // with the type of QP in the upper bits. Source: IBTA vol. 1, OpCode field
constexpr uint8_t kOperation = 0x1f;

class RxeAv : public RxeVerbs, public ::testing::WithParamInterface<std::tuple<QpType, Addresses>> {
 protected:
  static QpType type() { return std::get<0>(GetParam()); }
  static Addresses addresses() { return std::get<1>(GetParam()); }
  static bool IsIpv6() { return addresses().ours[0] == 'f'; }

  void SetUp() override {
    RxeVerbs::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    route_ = kRoute;
    Wire(type(), addresses());
  }

  void WeSend() {
    AddressHandle ah;
    SendWr wr = OnKernels(WrOpcode::kSend);
    if (type() == QpType::kUd) {
      ASSERT_OK_AND_ASSIGN(ah, AddressHandle::Create(ours_->pd, {.dest_gid = kernel_->gid,
                                                                 .sgid_index = ours_->gid.index,
                                                                 .flow_label = kRoute.flow_label,
                                                                 .hop_limit = kRoute.hop_limit,
                                                                 .traffic_class = kRoute.traffic_class}));
      wr.ah = &ah;
      wr.remote_qpn = k_->qp->qp_num;
      wr.remote_qkey = k_->qkey;
    }
    WeDo(wr, 0, kMessage);
  }
  void KernelSends() {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    VerbsPtr<ibv_ah, ibv_destroy_ah> ah;
    if (type() == QpType::kUd) {
      ibv_ah_attr attr = {};
      attr.is_global = 1;
      attr.port_num = 1;
      std::memcpy(attr.grh.dgid.raw, ours_->gid.raw.data(), ours_->gid.raw.size());
      attr.grh.sgid_index = kernel_->gid_index;
      attr.grh.flow_label = kRoute.flow_label;
      attr.grh.traffic_class = kRoute.traffic_class;
      attr.grh.hop_limit = kRoute.hop_limit;
      ah.reset(ibv_create_ah(kernel_->pd.get(), &attr));
      ASSERT_NE(ah, nullptr) << std::strerror(errno);
      wr.wr.ud = {.ah = ah.get(), .remote_qpn = o_->qp.qpn(), .remote_qkey = o_->qkey};
    }
    KernelDoes(wr, 0, kMessage);
  }
  static bool IsSend(const SeenPacket& packet) { return (packet.opcode() & kOperation) == kSendOnly; }
  // rxe leaves the flow label out, and the kernel takes the hop limit from its routes.
  static void ExpectRoute(const SeenPacket& packet) {
    EXPECT_EQ(packet.traffic_class, kRoute.traffic_class);
    EXPECT_EQ(packet.hop_limit, packet.from_kernel ? Route().hop_limit : kRoute.hop_limit);
    EXPECT_EQ(packet.flow_label, IsIpv6() && !packet.from_kernel ? kRoute.flow_label : 0);
  }
};

TEST_P(RxeAv, OursIsOnTheWire) {
  ASSERT_OK(k_->PostReceive(*kernel_, kSink, kMessage + kGrhBytes));
  UntilItArrives("message of ours", kMessage, [&] {
    Sniffer wire;
    WeSend();
    const auto packet =
        wire.WaitFor([](const SeenPacket& p) { return !p.from_kernel && IsSend(p); }, kPatience);
    EXPECT_TRUE(packet.has_value());
    if (!packet.has_value()) return false;
    ExpectRoute(*packet);
    const absl::StatusOr<ibv_wc> wc = k_->NextReceive(patience());
    if (!wc.ok()) return false;
    EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
    return true;
  });
  if (type() != QpType::kUd) return;
  // The kernel shows the IP header that came; that of IPv4 in the last bytes of the place.
  const auto* const grh = reinterpret_cast<const uint8_t*>(kernel_->data() + kSink);
  if (IsIpv6()) {
    uint32_t first = 0;
    std::memcpy(&first, grh, sizeof(first));
    EXPECT_EQ(ntohl(first), 6u << 28 | uint32_t{kRoute.traffic_class} << 20 | kRoute.flow_label);
    EXPECT_EQ(grh[7], kRoute.hop_limit);
  } else {
    EXPECT_EQ(grh[20 + 1], kRoute.traffic_class);
    EXPECT_EQ(grh[20 + 8], kRoute.hop_limit);
  }
}

TEST_P(RxeAv, TheKernelsIsTakenFromTheWire) {
  WePostReceive(kMessage + kGrhBytes);
  UntilItArrives("message of the kernel", kMessage, [&] {
    Sniffer wire;
    KernelSends();
    const auto packet = wire.WaitFor([](const SeenPacket& p) { return p.from_kernel && IsSend(p); }, kPatience);
    EXPECT_TRUE(packet.has_value());
    if (!packet.has_value()) return false;
    ExpectRoute(*packet);
    const absl::StatusOr<Wc> wc = o_->NextReceive(patience());
    if (!wc.ok()) return false;
    EXPECT_EQ(wc->status, WcStatus::kSuccess);
    return true;
  });
  if (type() != QpType::kUd) return;
  const auto* const grh = reinterpret_cast<const uint8_t*>(ours_->buffer.data() + kSink);
  const uint8_t traffic_class =
      IsIpv6() ? static_cast<uint8_t>((grh[0] & 0xf) << 4 | grh[1] >> 4) : grh[20 + 1];
  EXPECT_EQ(traffic_class & 0xfc, kRoute.traffic_class);
}

INSTANTIATE_TEST_SUITE_P(, RxeAv,
                         ::testing::Combine(::testing::Values(QpType::kRc, QpType::kUc, QpType::kUd),
                                            ::testing::Values(kIpv4, kIpv6)),
                         [](const auto& test) {
                           const QpType type = std::get<0>(test.param);
                           return std::string(type == QpType::kRc ? "Rc" : type == QpType::kUc ? "Uc" : "Ud") +
                                  (std::get<1>(test.param).ours[0] == 'f' ? "Ipv6" : "Ipv4");
                         });

}  // namespace
}  // namespace rdmad::testing
