// Datagram QPs under hostile packets and random use: every WR has one fate, in order, no byte lands
// outside a receive, and what arrives is what was sent. Made for the sanitizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "daemon/device/soft/multicast_group.h"
#include "tests/device/soft/ud_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::QpState;
using device::WcStatus;

constexpr uint32_t kSlotBytes = 2048;
constexpr uint32_t kReceiveBytes = 1100;  // of a slot; the rest must stay as it is
constexpr uint32_t kSlots = 16;

class UdFuzz : public ::testing::TestWithParam<std::tuple<Path, bool, uint64_t>> {
 protected:
  void Post() {
    const device::Sge in = bed_->b.Sge(received_ % kSlots * kSlotBytes, kReceiveBytes);
    const device::RecvWr recv{.wr_id = received_, .sges = {&in, 1}};
    const PostResult posted = bed_->b.srq != nullptr
                                  ? bed_->b.srq->PostRecv(recv)
                                  : bed_->b.qp->PostRecv(recv, bed_->network.now());
    if (posted == PostResult::kOk) ++received_;
    device::Sge out = bed_->a.Sge(0, static_cast<uint32_t>(random_() % 1100));
    device::SendWr wr = bed_->Wr(sent_, &out);
    switch (random_() % 24) {
      case 0:
        wr.ah = nullptr;
        break;
      case 1:
        ++out.lkey;
        break;
      case 2:
        wr.remote_qpn = static_cast<uint32_t>(random_());
        break;
      case 3:
        wr.remote_qkey = static_cast<uint32_t>(random_());
        break;
      case 4:
        wr.opcode = device::WrOpcode::kSendWithImm;
        break;
      default:
        break;
    }
    if (bed_->a.qp->PostSend(wr, bed_->network.now()) == PostResult::kOk) ++sent_;
  }
  void Attack() {
    wire::PacketFields fields;
    do {
      fields.opcode =
          static_cast<wire::Opcode>(random_() % 4 != 0 ? 0x64 + random_() % 2 : random_() % 256);
    } while (!wire::InfoOf(fields.opcode).known());
    const bool to_group = random_() % 4 == 0;
    fields.dest_qpn = to_group ? wire::kMulticastQpn : wire::Qpn(bed_->b.qp->qpn());
    fields.deth = {wire::Qkey(random_() % 4 == 0 ? static_cast<uint32_t>(random_()) : kTestQkey),
                   wire::Qpn(static_cast<uint32_t>(random_()))};
    const size_t bytes = wire::InfoOf(fields.opcode).has_payload() ? random_() % 4097 : 0;
    const std::vector<uint8_t> payload(bytes, 0xcc);
    const Flow flow{.local = bed_->b.address, .remote = bed_->a.address};
    if (!to_group) return bed_->network.Inject({flow.remote, flow.local}, fields, payload);
    wire::PacketView view;
    static_cast<wire::PacketFields&>(view) = fields;
    view.payload = payload;
    bed_->b.transport->OnMulticast(group_, flow, view, bed_->network.now());
  }
  // Ends all that is outstanding, looks at the account, and starts afresh.
  void Settle() {
    for (UdEndpoint* end : {&bed_->a, &bed_->b}) {
      if (end->qp->Query().state != QpState::kErr) bed_->Move(*end, QpState::kErr);
    }
    ASSERT_EQ(bed_->a.sends.all.size(), sent_);
    for (uint64_t i = 0; i < sent_; ++i) ASSERT_EQ(bed_->a.sends.all[i].wr_id, i);
    const auto& receives = bed_->b.receives.all;
    if (bed_->b.srq == nullptr) {
      ASSERT_EQ(receives.size(), received_);
    }
    for (uint64_t i = 0; i < receives.size(); ++i) ASSERT_EQ(receives[i].wr_id, i);
    for (UdEndpoint* end : {&bed_->a, &bed_->b}) {
      bed_->Move(*end, QpState::kReset);
      bed_->ToRts(*end);
    }
  }

  std::mt19937_64 random_{std::get<2>(GetParam())};
  std::optional<UdBed> bed_;
  MulticastGroup group_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

TEST_P(UdFuzz, EveryWrHasOneFateAndNoByteLandsOutside) {
  const auto [path, srq, seed] = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  bed_.emplace(UdBed::Options{.path = path, .srq = srq});
  bed_->network.keep_record = false;
  bed_->network.faults().loss = 0.1;
  bed_->network.faults().duplicate = 0.1;
  std::fill(bed_->b.memory.begin(), bed_->b.memory.end(), std::byte{0xbb});
  MulticastMember member(*bed_->b.qp);
  group_.Add(member);
  for (UdEndpoint* end : {&bed_->a, &bed_->b}) bed_->ToRts(*end);
  for (int round = 0; round < 2000 && !HasFatalFailure(); ++round) {
    if (random_() % 2 == 0) Post();
    if (random_() % 2 == 0) Attack();
    if (random_() % 3 == 0) bed_->network.Pass(static_cast<TimeNs>(random_() % 50'000));
    if (bed_->a.qp->Query().state == QpState::kSqe && random_() % 4 == 0) {
      bed_->Move(bed_->a, QpState::kRts);
    }
    if (round % 200 == 199 || bed_->b.qp->Query().state == QpState::kErr) Settle();
  }
  const auto& receives = bed_->b.receives.all;
  EXPECT_GT(std::count_if(receives.begin(), receives.end(),
                          [](const auto& wc) { return wc.status == WcStatus::kSuccess; }),
            50)
      << "no real traffic went through: this tests nothing";
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const auto begin = bed_->b.memory.begin() + static_cast<long>(slot * kSlotBytes);
    ASSERT_TRUE(std::all_of(begin + kReceiveBytes, begin + kSlotBytes, [](std::byte byte) {
      return byte == std::byte{0xbb};
    })) << "written behind a receive";
  }
  group_.Remove(member);
}

INSTANTIATE_TEST_SUITE_P(Seeds, UdFuzz,
                         ::testing::Combine(::testing::Values(Path::kWire, Path::kLocal),
                                            ::testing::Bool(), ::testing::Range<uint64_t>(1, 11)));

}  // namespace
}  // namespace rdmad::soft
