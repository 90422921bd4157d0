// Packets that no sane peer would send, in all states, beside real traffic. Nothing crashes, no
// byte outside the regions changes, and the WRs of both sides still have one fate each. Made for
// the sanitizers.
#include <gtest/gtest.h>

#include "daemon/device/soft/soft_mw.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::QpState;
using device::QpType;
using device::WrOpcode;

class TransportFuzz : public testing::TestWithParam<std::tuple<Path, QpType, uint64_t>> {};

TEST_P(TransportFuzz, HostilePacketsHarmOnlyTheirConnection) {
  const auto [path, type, seed] = GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  BedOptions options;
  options.path = path;
  options.type = type;
  options.faults.seed = seed;
  options.memory_bytes = 1 << 18;
  options.timeout = 8;
  Bed bed(options);
  bed.network.keep_record = false;
  // Each side registers only the first half of its memory anew, and with it only some rights.
  const size_t half = options.memory_bytes / 2;
  std::fill(bed.b.memory.begin(), bed.b.memory.end(), std::byte{0xbb});
  bed.b.mr->Deactivate(0);
  auto mr = SoftMr::Create(*bed.b.transport, bed.b.pd,
                           {bed.b.memory.data(), half, Endpoint::kIova, device::kAccessAll});
  ASSERT_TRUE(mr.ok());
  (*mr)->Activate(0);
  // And a window that it binds and invalidates now and then.
  const auto mw = std::move(SoftMw::Create(*bed.b.transport, bed.b.pd).value());
  mw->Activate(0);
  uint32_t window_key = mw->rkey();

  uint64_t sends = 0;
  uint64_t receives = 0;
  for (int round = 0; round < 2000; ++round) {
    // Real traffic.
    if (random() % 2 == 0 && bed.a.qp->Query().state == QpState::kRts) {
      const device::Sge sge = bed.a.Sge(0, static_cast<uint32_t>(random() % 6000));
      constexpr WrOpcode kOps[] = {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kRdmaRead,
                                   WrOpcode::kRdmaWriteWithImm};
      constexpr WrOpcode kUcOps[] = {WrOpcode::kSend, WrOpcode::kRdmaWrite, WrOpcode::kSendWithImm,
                                     WrOpcode::kRdmaWriteWithImm};
      const size_t op = random() % 4;
      device::SendWr wr =
          bed.Wr(sends, type == QpType::kRc ? kOps[op] : kUcOps[op], &sge, random() % half);
      wr.rkey = random() % 4 == 0 ? window_key : (*mr)->rkey();
      if (bed.Post(bed.a, wr) == PostResult::kOk) ++sends;
      const device::Sge in{Endpoint::kIova, 8192, (*mr)->lkey()};
      if (bed.b.qp->PostRecv({.wr_id = receives, .sges = {&in, 1}}, bed.network.now()) ==
          PostResult::kOk) {
        ++receives;
      }
    }
    if (random() % 8 == 0 && bed.b.qp->Query().state == QpState::kRts) {
      device::SendWr wr = bed.Wr(0, WrOpcode::kLocalInv, nullptr, random() % half);
      wr.imm_be = window_key;
      if (random() % 2 == 0) {
        window_key = (window_key & ~0xffu) | (window_key + 1) % 256;
        wr.opcode = WrOpcode::kBindMw;
        wr.rkey = window_key;
        wr.bind_lkey = (*mr)->lkey();
        wr.compare_add = random() % half;
        wr.swap = device::kAccessRemoteWrite | device::kAccessRemoteRead;
      }
      (void)bed.Post(bed.b, wr);
    }
    // A packet near the live sequence, from either side to either side.
    const bool to_b = random() % 2 == 0;
    Endpoint& target = to_b ? bed.b : bed.a;
    const device::QpAttr attr = target.qp->Query();
    wire::PacketFields fields;
    do {
      fields.opcode = static_cast<wire::Opcode>(random() % 0x18 + (type == QpType::kUc ? 0x20 : 0));
    } while (!wire::InfoOf(fields.opcode).known());
    fields.dest_qpn = wire::Qpn(target.qp->qpn());
    const uint32_t base = random() % 2 == 0 ? attr.rq_psn : attr.sq_psn;
    fields.psn = wire::Psn(base + static_cast<uint32_t>(random() % 9) - 4);
    if (random() % 16 == 0) fields.psn = wire::Psn(static_cast<uint32_t>(random()));
    fields.ack_req = random() % 2 == 0;
    fields.solicited = random() % 2 == 0;
    uint32_t key = random() % 4 == 0 ? static_cast<uint32_t>(random()) : (*mr)->rkey();
    if (random() % 4 == 0) key = window_key;
    fields.invalidate_rkey = wire::Rkey(key);
    const uint64_t va = Endpoint::kIova + random() % (half + 64) - 32;
    const auto length = static_cast<uint32_t>(random() % 8 == 0 ? random() : random() % 5000);
    fields.reth = {va, wire::Rkey(key), length};
    fields.atomic = {va & ~uint64_t{7}, wire::Rkey(key), random(), random()};
    fields.aeth.syndrome = static_cast<uint8_t>(random());
    size_t bytes = 0;
    if (wire::InfoOf(fields.opcode).has_payload()) {
      constexpr size_t kSizes[] = {0, 1, 1023, 1024, 1025, 4096};
      bytes = random() % 2 == 0 ? 1024 : kSizes[random() % 6];
    }
    const std::vector<uint8_t> payload(bytes, 0xcc);
    const Flow flow = to_b ? Flow{.local = bed.a.address, .remote = bed.b.address}
                           : Flow{.local = bed.b.address, .remote = bed.a.address};
    bed.network.Inject(flow, fields, payload);
    if (random() % 3 == 0) bed.network.Pass(static_cast<TimeNs>(random() % 100'000));
    // Whoever has come to harm starts afresh, and so does everybody now and then.
    const bool dead =
        bed.a.qp->Query().state != QpState::kRts || bed.b.qp->Query().state != QpState::kRts;
    if ((dead && round % 10 == 9) || round % 100 == 99) {
      for (Endpoint* endpoint : {&bed.a, &bed.b}) (void)bed.MoveTo(*endpoint, QpState::kErr);
      ASSERT_EQ(bed.a.sends.all.size(), sends);
      ASSERT_EQ(bed.b.receives.all.size(), receives);
      for (uint64_t i = 0; i < sends; ++i) ASSERT_EQ(bed.a.sends.all[i].wr_id, i);
      for (uint64_t i = 0; i < receives; ++i) ASSERT_EQ(bed.b.receives.all[i].wr_id, i);
      for (Endpoint* endpoint : {&bed.a, &bed.b}) (void)bed.MoveTo(*endpoint, QpState::kReset);
      bed.Connect();
    }
  }
  EXPECT_GT(std::count_if(bed.a.sends.all.begin(), bed.a.sends.all.end(),
                          [](const auto& wc) { return wc.status == device::WcStatus::kSuccess; }),
            50)
      << "no real traffic went through: this tests nothing";
  EXPECT_TRUE(std::all_of(bed.b.memory.begin() + static_cast<long>(half), bed.b.memory.end(),
                          [](std::byte byte) { return byte == std::byte{0xbb}; }))
      << "written outside the region";
  bed.network.RunUntilQuiet();
  mw->Deactivate(0);
  (*mr)->Deactivate(0);
  bed.b.mr->Activate(0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TransportFuzz,
                         testing::Combine(testing::Values(Path::kWire, Path::kLocal),
                                          testing::Values(QpType::kRc, QpType::kUc),
                                          testing::Range<uint64_t>(1, 31)));

}  // namespace
}  // namespace rdmad::soft
