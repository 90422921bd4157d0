// Every RC operation at the sizes where something changes, on the wire and on the local path.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "proto/shm/completion_queue.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;

constexpr uint32_t kMtu = 1024;
constexpr uint32_t kSizes[] = {0, 1, 3, kMtu - 1, kMtu, kMtu + 1, 10 * kMtu, 1 << 20};

class RcOperations : public PathTest {};
RDMAD_ON_BOTH_PATHS(RcOperations);

TEST_P(RcOperations, SendDeliversEverySize) {
  Bed bed(Options());
  uint64_t wr_id = 1;
  for (const uint32_t size : kSizes) {
    SCOPED_TRACE(size);
    bed.Fill(bed.a, 0, size, size + 1);
    ASSERT_EQ(bed.PostRecv(bed.b, wr_id + 100, 0, 1 << 20), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, size);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kSend, &sge)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, wr_id));
    const device::Wc& sent = bed.a.sends.all.back();
    EXPECT_EQ(sent.status, WcStatus::kSuccess);
    EXPECT_EQ(sent.opcode, WcOpcode::kSend);
    EXPECT_EQ(sent.wr_id, wr_id);
    EXPECT_EQ(sent.wqe_count, wr_id);
    EXPECT_EQ(sent.qpn, 0x11u);
    EXPECT_EQ(sent.qp_cookie, 0x11u * 100);
    ASSERT_EQ(bed.b.receives.all.size(), wr_id);
    const device::Wc& received = bed.b.receives.all.back();
    EXPECT_EQ(received.status, WcStatus::kSuccess);
    EXPECT_EQ(received.opcode, WcOpcode::kRecv);
    EXPECT_EQ(received.wr_id, wr_id + 100);
    EXPECT_EQ(received.byte_len, size);
    EXPECT_EQ(received.flags, shm::kCqeRecvQueue);
    EXPECT_FALSE(received.solicited);
    EXPECT_TRUE(bed.Same(0, 0, size));
    ++wr_id;
  }
}

TEST_P(RcOperations, SendWithImmDeliversTheValueAndTheSolicitedBit) {
  Bed bed(Options());
  uint64_t wr_id = 1;
  for (const uint32_t size : kSizes) {
    SCOPED_TRACE(size);
    bed.Fill(bed.a, 0, size, size + 2);
    ASSERT_EQ(bed.PostRecv(bed.b, wr_id, 64, 1 << 20), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, size);
    device::SendWr wr = bed.Wr(wr_id, WrOpcode::kSendWithImm, &sge);
    wr.imm_be = htonl(0x12345678);
    wr.flags |= shm::kWorkSolicited;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, wr_id));
    ASSERT_EQ(bed.b.receives.all.size(), wr_id);
    const device::Wc& received = bed.b.receives.all.back();
    EXPECT_EQ(received.imm_be, htonl(0x12345678));
    EXPECT_EQ(received.flags, shm::kCqeRecvQueue | shm::kCqeWithImm);
    EXPECT_TRUE(received.solicited);
    EXPECT_EQ(received.byte_len, size);
    EXPECT_TRUE(bed.Same(0, 64, size));
    ++wr_id;
  }
}

TEST_P(RcOperations, WriteChangesExactlyTheRange) {
  Bed bed(Options());
  uint64_t wr_id = 1;
  for (const uint32_t size : kSizes) {
    SCOPED_TRACE(size);
    bed.Fill(bed.a, 0, size, size + 3);
    std::fill(bed.b.memory.begin(), bed.b.memory.end(), std::byte{0xbb});
    const device::Sge sge = bed.a.Sge(0, size);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kRdmaWrite, &sge, 77)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, wr_id));
    EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess);
    EXPECT_EQ(bed.a.sends.all.back().opcode, WcOpcode::kRdmaWrite);
    EXPECT_TRUE(bed.Same(0, 77, size));
    EXPECT_EQ(bed.b.memory[76], std::byte{0xbb});
    EXPECT_EQ(bed.b.memory[77 + size], std::byte{0xbb});
    ++wr_id;
  }
  EXPECT_TRUE(bed.b.receives.all.empty());
}

TEST_P(RcOperations, WriteWithImmCompletesAReceiveWithoutUsingItsBuffer) {
  Bed bed(Options());
  uint64_t wr_id = 1;
  for (const uint32_t size : kSizes) {
    SCOPED_TRACE(size);
    bed.Fill(bed.a, 0, size, size + 4);
    ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = wr_id, .sges = {}}, bed.network.now()), PostResult::kOk);
    const device::Sge sge = bed.a.Sge(0, size);
    device::SendWr wr = bed.Wr(wr_id, WrOpcode::kRdmaWriteWithImm, &sge, 128);
    wr.imm_be = htonl(7);
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, wr_id));
    ASSERT_EQ(bed.b.receives.all.size(), wr_id);
    const device::Wc& received = bed.b.receives.all.back();
    EXPECT_EQ(received.opcode, WcOpcode::kRecvRdmaWithImm);
    EXPECT_EQ(received.imm_be, htonl(7));
    EXPECT_EQ(received.byte_len, size);
    EXPECT_TRUE(bed.Same(0, 128, size));
    ++wr_id;
  }
}

TEST_P(RcOperations, ReadFetchesExactlyTheRange) {
  Bed bed(Options());
  uint64_t wr_id = 1;
  for (const uint32_t size : kSizes) {
    SCOPED_TRACE(size);
    bed.Fill(bed.b, 99, size, size + 5);
    std::fill(bed.a.memory.begin(), bed.a.memory.end(), std::byte{0xaa});
    const device::Sge sge = bed.a.Sge(33, size);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(wr_id, WrOpcode::kRdmaRead, &sge, 99)), PostResult::kOk);
    ASSERT_TRUE(bed.Await(bed.a.sends, wr_id));
    EXPECT_EQ(bed.a.sends.all.back().status, WcStatus::kSuccess);
    EXPECT_EQ(bed.a.sends.all.back().opcode, WcOpcode::kRdmaRead);
    EXPECT_EQ(bed.a.sends.all.back().byte_len, size);
    EXPECT_TRUE(bed.Same(33, 99, size));
    EXPECT_EQ(bed.a.memory[32], std::byte{0xaa});
    EXPECT_EQ(bed.a.memory[33 + size], std::byte{0xaa});
    ++wr_id;
  }
}

TEST_P(RcOperations, CompareSwapSwapsOnlyWhatCompares) {
  Bed bed(Options());
  uint64_t word = 5;
  std::memcpy(bed.b.memory.data() + 8, &word, 8);
  const device::Sge sge = bed.a.Sge(0, 8);
  device::SendWr wr = bed.Wr(1, WrOpcode::kCompareSwap, &sge, 8);
  wr.compare_add = 5;
  wr.swap = 0x1122334455667788;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  wr.wr_id = 2;
  wr.swap = 9;
  device::Sge second = bed.a.Sge(8, 8);
  wr.sges = {&second, 1};
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
  EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
  EXPECT_EQ(bed.a.sends.all[0].opcode, WcOpcode::kCompSwap);
  uint64_t originals[2];
  std::memcpy(originals, bed.a.memory.data(), sizeof(originals));
  std::memcpy(&word, bed.b.memory.data() + 8, 8);
  EXPECT_EQ(originals[0], 5u);
  EXPECT_EQ(originals[1], 0x1122334455667788u);
  EXPECT_EQ(word, 0x1122334455667788u);
}

TEST_P(RcOperations, FetchAddAddsAndWraps) {
  Bed bed(Options());
  uint64_t word = UINT64_MAX;
  std::memcpy(bed.b.memory.data(), &word, 8);
  const device::Sge sge = bed.a.Sge(0, 8);
  device::SendWr wr = bed.Wr(1, WrOpcode::kFetchAdd, &sge, 0);
  wr.compare_add = 3;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  uint64_t original;
  std::memcpy(&original, bed.a.memory.data(), 8);
  std::memcpy(&word, bed.b.memory.data(), 8);
  EXPECT_EQ(bed.a.sends.all[0].opcode, WcOpcode::kFetchAdd);
  EXPECT_EQ(original, UINT64_MAX);
  EXPECT_EQ(word, 2u);
}

TEST_P(RcOperations, ScatterAndGatherOverTwentyUnequalPieces) {
  Bed bed(Options());
  bed.Fill(bed.a, 0, 200'000);
  std::vector<device::Sge> out;
  std::vector<device::Sge> in;
  std::vector<std::byte> expected;
  uint32_t total = 0;
  for (uint32_t i = 0; i < kMaxSge; ++i) {
    const uint32_t bytes = i % 4 == 3 ? 0 : 1 + i * 397;  // some pieces are empty
    out.push_back(bed.a.Sge(i * 9000, bytes));
    expected.insert(expected.end(), bed.a.memory.begin() + i * 9000,
                    bed.a.memory.begin() + i * 9000 + bytes);
    total += bytes;
  }
  uint32_t left = total;
  for (uint32_t i = 0; i < kMaxSge; ++i) {
    const uint32_t bytes = i + 1 == kMaxSge ? left : std::min(left, 13 + i * 211);
    in.push_back(bed.b.Sge(i * 100'000, bytes));
    left -= bytes;
  }
  ASSERT_EQ(bed.b.qp->PostRecv({.wr_id = 1, .sges = in}, bed.network.now()), PostResult::kOk);
  device::SendWr wr = bed.Wr(1, WrOpcode::kSend, nullptr);
  wr.sges = out;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.receives.all[0].byte_len, total);
  std::vector<std::byte> got;
  for (uint32_t i = 0; i < kMaxSge; ++i) {
    got.insert(got.end(), bed.b.memory.begin() + i * 100'000,
               bed.b.memory.begin() + i * 100'000 + in[i].length_bytes);
  }
  EXPECT_TRUE(got == expected);
}

TEST_P(RcOperations, ReadScattersOverSeveralPieces) {
  Bed bed(Options());
  bed.Fill(bed.b, 0, 5000);
  const device::Sge pieces[] = {bed.a.Sge(10, 1500), bed.a.Sge(20'000, 0), bed.a.Sge(30'000, 3500)};
  device::SendWr wr = bed.Wr(1, WrOpcode::kRdmaRead, nullptr, 0);
  wr.sges = pieces;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  EXPECT_TRUE(bed.Same(10, 0, 1500));
  EXPECT_TRUE(bed.Same(30'000, 1500, 3500));
}

TEST_P(RcOperations, InlineDataInThreePieces) {
  Bed bed(Options());
  const std::string text(kMaxInlineBytes, 'x');
  std::string data = text;
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>('a' + i % 26);
  const auto bytes = std::as_bytes(std::span(data));
  ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 4096), PostResult::kOk);
  device::SendWr wr = bed.Wr(1, WrOpcode::kSend, nullptr);
  wr.flags |= shm::kWorkInline;
  wr.inline_data.pieces = {bytes.first(64), bytes.subspan(64, 500), bytes.subspan(564)};
  wr.inline_bytes = kMaxInlineBytes;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.b.receives, 1));
  EXPECT_EQ(bed.b.receives.all[0].byte_len, kMaxInlineBytes);
  EXPECT_EQ(std::memcmp(bed.b.memory.data(), data.data(), data.size()), 0);
}

TEST_P(RcOperations, InlineDataGoesWithEveryOperationThatSends) {
  for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kSendWithImm, WrOpcode::kRdmaWrite,
                                WrOpcode::kRdmaWriteWithImm}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{kMaxInlineBytes}}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(opcode) << " size " << size);
      Bed bed(Options());
      bed.Fill(bed.a, 0, size);
      const std::vector<std::byte> data(bed.a.memory.begin(),
                                        bed.a.memory.begin() + static_cast<long>(size));
      ASSERT_EQ(bed.PostRecv(bed.b, 1, 0, 4096), PostResult::kOk);
      device::SendWr wr = bed.Wr(1, opcode, nullptr);
      wr.flags |= shm::kWorkInline;
      wr.inline_data.pieces[0] = data;
      wr.inline_bytes = static_cast<uint32_t>(size);
      if (size == 0) wr.rkey = 0;  // names no memory
      ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
      ASSERT_TRUE(bed.Await(bed.a.sends, 1));
      EXPECT_EQ(bed.a.sends.all[0].status, WcStatus::kSuccess);
      EXPECT_EQ(bed.b.receives.all.size(), opcode == WrOpcode::kRdmaWrite ? 0u : 1u);
      EXPECT_TRUE(bed.Same(0, 0, size));
    }
  }
}

TEST_P(RcOperations, UnsignaledWrsAreCountedByTheNextCompletion) {
  Bed bed(Options());
  const device::Sge sge = bed.a.Sge(0, 8);
  for (uint64_t i = 1; i <= 10; ++i) {
    device::SendWr wr = bed.Wr(i, WrOpcode::kRdmaWrite, &sge);
    wr.flags = i == 10 ? shm::kWorkSignaled : 0;
    ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  ASSERT_EQ(bed.a.sends.all.size(), 1u);
  EXPECT_EQ(bed.a.sends.all[0].wr_id, 10u);
  EXPECT_EQ(bed.a.sends.all[0].wqe_count, 10u);
}

TEST_P(RcOperations, SignalAllReportsEveryWr) {
  BedOptions options = Options();
  options.signal_all = true;
  Bed bed(options);
  const device::Sge sge = bed.a.Sge(0, 8);
  device::SendWr wr = bed.Wr(1, WrOpcode::kRdmaWrite, &sge);
  wr.flags = 0;
  ASSERT_EQ(bed.Post(bed.a, wr), PostResult::kOk);
  EXPECT_TRUE(bed.Await(bed.a.sends, 1));
}

TEST_P(RcOperations, BothDirectionsAtOnceAcrossThePsnWrap) {
  BedOptions options = Options();
  options.psn_a = 0xfffffe;
  options.psn_b = 0xfffff0;
  Bed bed(options);
  for (uint64_t i = 0; i < 32; ++i) {
    bed.Fill(bed.a, i * 5000, 5000, i);
    bed.Fill(bed.b, 1'000'000 + i * 5000, 5000, 1000 + i);
    ASSERT_EQ(bed.PostRecv(bed.a, i, 1'000'000 + i * 5000, 5000), PostResult::kOk);
    ASSERT_EQ(bed.PostRecv(bed.b, i, i * 5000, 5000), PostResult::kOk);
    const device::Sge from_a = bed.a.Sge(i * 5000, 5000);
    const device::Sge from_b = bed.b.Sge(1'000'000 + i * 5000, 5000);
    ASSERT_EQ(bed.Post(bed.a, bed.Wr(i, WrOpcode::kSend, &from_a)), PostResult::kOk);
    ASSERT_EQ(bed.Post(bed.b, bed.Wr(i, WrOpcode::kSend, &from_b)), PostResult::kOk);
  }
  ASSERT_TRUE(bed.Await(bed.a.receives, 32));
  ASSERT_TRUE(bed.Await(bed.b.receives, 32));
  for (uint64_t i = 0; i < 32; ++i) EXPECT_EQ(bed.b.receives.all[i].wr_id, i);
  EXPECT_TRUE(bed.Same(0, 0, 32 * 5000));
  EXPECT_TRUE(bed.Same(1'000'000, 1'000'000, 32 * 5000));
  EXPECT_EQ(bed.a.qp->Query().sq_psn, (0xfffffe + 32 * 5) & 0xffffffu);
  EXPECT_EQ(bed.b.qp->Query().rq_psn, (0xfffffe + 32 * 5) & 0xffffffu);
}

TEST_P(RcOperations, OnlyTheWireSendsPackets) {
  Bed bed(Options());
  const device::Sge sge = bed.a.Sge(0, 5000);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 1));
  bed.network.RunUntilQuiet();
  const bool local = GetParam() == Path::kLocal;
  EXPECT_EQ(bed.network.sent().size(), local ? 0u : 6u);
  EXPECT_EQ(bed.Counter(bed.a, "local_messages"), local ? 1u : 0u);
  EXPECT_EQ(bed.Counter(bed.a, "local_bytes"), local ? 5000u : 0u);
  EXPECT_EQ(bed.a.qp->same_daemon(), local);
}

TEST_P(RcOperations, FirstMessageInRtrRaisesCommEstablishedOnce) {
  BedOptions options = Options();
  options.connect = false;
  Bed bed(options);
  bed.ToRts(bed.a, bed.b, options.psn_a, options.psn_b);
  bed.ToInit(bed.b);
  bed.ToRtr(bed.b, bed.a, options.psn_a);
  const device::Sge sge = bed.a.Sge(0, 8);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(1, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_EQ(bed.Post(bed.a, bed.Wr(2, WrOpcode::kRdmaWrite, &sge)), PostResult::kOk);
  ASSERT_TRUE(bed.Await(bed.a.sends, 2));
  ASSERT_EQ(bed.b.events->Count(device::AsyncEventType::kCommEst), 1u);
  EXPECT_EQ(bed.b.events->all[0].owner_token, 0x12u * 1000);
  EXPECT_EQ(bed.b.events->all[0].qpn, 0x12u);
}

}  // namespace
}  // namespace rdmad::soft
