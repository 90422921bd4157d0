// The kernel's soft-RoCE against our two halves, from its captures: given rxe's requests our
// responder answers as rxe's did, and given rxe's answers our requester asks as rxe's did. The
// README beside the captures says how they were made.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "daemon/device/soft/soft_qp.h"
#include "daemon/wire/aeth.h"
#include "daemon/wire/packet.h"
#include "tests/support/rxe_captures.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {
namespace {

using device::PostResult;
using device::WcStatus;
using device::WrOpcode;
using wire::Opcode;

constexpr size_t kRegionBytes = 65536;
constexpr uint64_t kSourceIova = 0x5000'0000;
constexpr uint32_t kPsnA = 0x000100;
constexpr uint32_t kPsnB = 0xfffffe;

// What A posted, by the script that made the captures.
struct Post {
  WrOpcode opcode;
  uint32_t bytes;
  uint32_t imm = 0;  // as a number on the wire
  uint8_t flags = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
};

struct Capture {
  const char* file;
  std::vector<Post> posts;
  WcStatus last_status = WcStatus::kSuccess;
  uint64_t va_offset = 0;  // of the first remote address in the region
  uint32_t rkey_xor = 0;   // what made the key a wrong one
  uint32_t psn_ahead = 0;  // of A's first PSN
  uint32_t receive_bytes = 65536;
  int receives_after = 0;   // answers of B that came before it posted its receives
  bool same_answer = true;  // rxe's answers are those that we give
};

std::vector<Capture> Captures() {
  using enum device::WrOpcode;
  constexpr uint8_t kSolicited = shm::kWorkSolicited;
  std::vector<Capture> all = {
      {.file = "write-256", .posts = {{kRdmaWrite, 256}}},
      {.file = "write-multi", .posts = {{kRdmaWrite, 10'000}}},
      {.file = "write-imm", .posts = {{kRdmaWriteWithImm, 300, 0x78563412}}},
      {.file = "write-imm-multi", .posts = {{kRdmaWriteWithImm, 10'000, 0x78563412}}},
      {.file = "read-256", .posts = {{kRdmaRead, 256}}},
      {.file = "read-multi", .posts = {{kRdmaRead, 10'000}}},
      {.file = "read-3x-multi", .posts = {{kRdmaRead, 9000}, {kRdmaRead, 9000}, {kRdmaRead, 9000}}},
      {.file = "send-256", .posts = {{kSend, 256}}},
      {.file = "send-odd-pad", .posts = {{kSend, 255}}},
      {.file = "send-multi", .posts = {{kSend, 10'000}}},
      {.file = "send-3", .posts = {{kSend, 64}, {kSend, 64}, {kSend, 64, 0, kSolicited}}},
      {.file = "send-imm", .posts = {{kSendWithImm, 100, 0x01efcdab}}},
      {.file = "zero-length", .posts = {{kSend, 0}, {kRdmaWrite, 0}, {kRdmaRead, 0}}},
      {.file = "atomic-cas", .posts = {{kCompareSwap, 8, 0, 0, 5, 0x1122334455667788}}},
      {.file = "atomic-faa", .posts = {{kFetchAdd, 8, 0, 0, 0x100}}},
      {.file = "ipv6-write-multi", .posts = {{kRdmaWrite, 10'000}}},
      {.file = "bad-rkey-write",
       .posts = {{kRdmaWrite, 256}},
       .last_status = WcStatus::kRemAccessErr,
       .rkey_xor = 0xff00},
      {.file = "bad-rkey-read",
       .posts = {{kRdmaRead, 256}},
       .last_status = WcStatus::kRemAccessErr,
       .rkey_xor = 0xff00},
      {.file = "out-of-bounds-write",
       .posts = {{kRdmaWrite, 256}},
       .last_status = WcStatus::kRemAccessErr,
       .va_offset = kRegionBytes - 256 + 1},
      {.file = "short-recv",
       .posts = {{kSend, 256}},
       .last_status = WcStatus::kRemOpErr,
       .receive_bytes = 16,
       .same_answer = false},  // rxe: remote operational error; see Responder::Refuse
      {.file = "rnr-then-ok", .posts = {{kSend, 64}}, .receives_after = 1},
      {.file = "rnr-exhausted",
       .posts = {{kSend, 64}},
       .last_status = WcStatus::kRnrRetryExcErr,
       .receives_after = 100},
      {.file = "nak-psn",
       .posts = {{kSend, 64}},
       .last_status = WcStatus::kRetryExcErr,
       .psn_ahead = 5},
  };
  return all;
}

struct Parsed {
  bool from_a;
  wire::PacketView view;
};

// One side of a captured connection, played by our transport on a network that only records.
class RxeReplay : public ::testing::TestWithParam<Capture> {
 protected:
  void SetUp() override {
    for (const auto& packet : rdmad::testing::RxePacketsOf(GetParam().file)) {
      Parsed parsed;
      ASSERT_EQ(wire::ParsePacket(packet.udp.payload, &parsed.view), wire::DropReason::kNone);
      // A speaks first.
      if (packets_.empty()) {
        address_a_ = packet.udp.source;
        address_b_ = packet.udp.destination;
        qpn_b_ = parsed.view.dest_qpn.value();
      }
      parsed.from_a = packet.udp.source == address_a_;
      if (!parsed.from_a) qpn_a_ = parsed.view.dest_qpn.value();
      if (parsed.view.info().has(wire::kHasReth) && rkey_ == 0) {
        va_ = parsed.view.reth.va;
        rkey_ = parsed.view.reth.rkey.value();
      }
      if (parsed.view.info().has(wire::kHasAtomicEth)) {
        va_ = parsed.view.atomic.va;
        rkey_ = parsed.view.atomic.rkey.value();
      }
      packets_.push_back(parsed);
    }
    memory_.resize(kRegionBytes);
  }

  void MakeQp(uint32_t qpn, uint32_t peer_qpn, const IpAddress& own, const IpAddress& peer,
              uint32_t sq_psn, uint32_t rq_psn) {
    SoftQpInit init;
    init.qpn = qpn;
    init.pd = &pd_;
    init.init.send_cq = &send_cq_;
    init.init.recv_cq = &recv_cq_;
    init.cap = {16, 16, 2, 2, 0};
    init.source = [own](uint32_t, SourceAddress* out) {
      out->address = own;
      return true;
    };
    auto created = SoftQp::Create(transport_, init);
    ASSERT_TRUE(created.ok());
    qp_ = std::move(*created);
    qp_->Activate(0);
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort |
                device::kQpAttrAccessFlags;
    attr.state = device::QpState::kInit;
    attr.access_flags = device::kAccessAll & ~device::kAccessMwBind;
    ASSERT_EQ(qp_->Modify(attr, 0), device::QpResult::kOk);
    attr.mask = device::kQpAttrState | device::kQpAttrAv | device::kQpAttrPathMtu |
                device::kQpAttrDestQpn | device::kQpAttrRqPsn | device::kQpAttrMaxDestRdAtomic |
                device::kQpAttrMinRnrTimer;
    attr.state = device::QpState::kRtr;
    attr.av.dest = peer;
    attr.path_mtu = device::Mtu::k4096;
    attr.dest_qpn = peer_qpn;
    attr.rq_psn = rq_psn;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    ASSERT_EQ(qp_->Modify(attr, 0), device::QpResult::kOk);
    attr.mask = device::kQpAttrState | device::kQpAttrSqPsn | device::kQpAttrTimeout |
                device::kQpAttrRetryCnt | device::kQpAttrRnrRetry | device::kQpAttrMaxQpRdAtomic;
    attr.state = device::QpState::kRts;
    attr.sq_psn = sq_psn;
    attr.timeout = 14;
    attr.retry_count = 3;
    attr.rnr_retry = 3;
    attr.max_rd_atomic = 4;
    ASSERT_EQ(qp_->Modify(attr, 0), device::QpResult::kOk);
  }

  void TearDown() override {
    if (qp_ != nullptr) qp_->Deactivate(0);
  }

  struct Recorded {
    wire::PacketFields fields;
    std::vector<uint8_t> payload;
  };
  class Recorder : public PacketTx {
   public:
    size_t Send(const Flow&, std::span<const TxPacket> packets) noexcept override {
      for (const TxPacket& packet : packets) {
        Recorded record{packet.fields, {}};
        for (const iovec& slice : packet.payload) {
          const auto* bytes = static_cast<const uint8_t*>(slice.iov_base);
          record.payload.insert(record.payload.end(), bytes, bytes + slice.iov_len);
        }
        sent.push_back(std::move(record));
      }
      return packets.size();
    }
    std::vector<Recorded> sent;
  };

  static std::vector<uint8_t> Bytes(std::span<const uint8_t> bytes) {
    return {bytes.begin(), bytes.end()};
  }

  std::vector<Parsed> packets_;
  IpAddress address_a_, address_b_;
  uint32_t qpn_a_ = 0x11, qpn_b_ = 0;
  uint64_t va_ = 0;
  uint32_t rkey_ = 0;
  std::vector<std::byte> memory_;
  Recorder recorder_;
  EventLog events_;
  Transport transport_{&recorder_, &events_};
  SoftPd pd_;
  CompletionLog sends_, receives_;
  SoftCq send_cq_{64, &sends_}, recv_cq_{64, &receives_};
  std::unique_ptr<SoftQp> qp_;
};

TEST_P(RxeReplay, ResponderAnswersAsRxeDid) {
  const Capture& capture = GetParam();
  MakeQp(qpn_b_, qpn_a_, address_b_, address_a_, kPsnB, kPsnA);
  std::fill(memory_.begin(), memory_.end(), std::byte{0xbb});
  if (capture.posts[0].opcode == WrOpcode::kCompareSwap ||
      capture.posts[0].opcode == WrOpcode::kFetchAdd) {
    const uint64_t five = 5;
    std::memcpy(memory_.data(), &five, sizeof(five));
  }
  if (rkey_ != 0) {
    transport_.mrs().Insert({.host_addr = memory_.data(),
                             .length_bytes = kRegionBytes,
                             .iova = va_ - capture.va_offset,
                             .pd_id = pd_.id(),
                             .access = device::kAccessAll & ~device::kAccessMwBind,
                             .key = rkey_ ^ capture.rkey_xor});
  }
  std::vector<std::byte> receive_memory(kRegionBytes);
  constexpr uint32_t kReceiveKey = 0xfff00;
  transport_.mrs().Insert({.host_addr = receive_memory.data(),
                           .length_bytes = kRegionBytes,
                           .iova = 0,
                           .pd_id = pd_.id(),
                           .access = device::kAccessLocalWrite,
                           .key = kReceiveKey});
  const device::Sge sge{0, capture.receive_bytes, kReceiveKey};
  const auto post_receives = [&] {
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_EQ(qp_->PostRecv({.wr_id = i, .sges = {&sge, 1}}, 0), PostResult::kOk);
    }
  };
  if (capture.receives_after == 0) post_receives();

  std::vector<const Parsed*> expected;
  for (const Parsed& parsed : packets_) {
    if (!parsed.from_a) {
      expected.push_back(&parsed);
      if (capture.receives_after == static_cast<int>(expected.size())) post_receives();
      continue;
    }
    transport_.OnPacket({.local = address_b_, .remote = address_a_}, parsed.view, 1);
    for (int turn = 0; turn < 3; ++turn) transport_.DoWork(1);
  }
  ASSERT_EQ(recorder_.sent.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "answer " << i);
    const wire::PacketView& rxe = expected[i]->view;
    const Recorded& ours = recorder_.sent[i];
    EXPECT_STREQ(wire::OpcodeName(ours.fields.opcode), wire::OpcodeName(rxe.opcode));
    EXPECT_EQ(ours.fields.psn, rxe.psn);
    EXPECT_EQ(ours.fields.dest_qpn, rxe.dest_qpn);
    if (rxe.info().has(wire::kHasAeth)) {
      if (capture.same_answer) {
        EXPECT_EQ(ours.fields.aeth.syndrome, rxe.aeth.syndrome);
      } else {
        EXPECT_EQ(ours.fields.aeth.syndrome, wire::NakSyndrome(wire::NakCode::kInvalidRequest));
      }
      EXPECT_EQ(ours.fields.aeth.msn, rxe.aeth.msn);
    }
    if (rxe.info().has(wire::kHasAtomicAckEth)) {
      EXPECT_EQ(ours.fields.atomic_original, rxe.atomic_original);
    }
    EXPECT_EQ(ours.payload, Bytes(rxe.payload));
  }
}

TEST_P(RxeReplay, RequesterAsksAsRxeDid) {
  const Capture& capture = GetParam();
  MakeQp(qpn_a_, qpn_b_, address_a_, address_b_, kPsnA + capture.psn_ahead, kPsnB);
  for (size_t i = 0; i < kRegionBytes; ++i) memory_[i] = static_cast<std::byte>(i);
  constexpr uint32_t kSourceKey = 0x100;
  transport_.mrs().Insert({.host_addr = memory_.data(),
                           .length_bytes = kRegionBytes,
                           .iova = kSourceIova,
                           .pd_id = pd_.id(),
                           .access = device::kAccessLocalWrite,
                           .key = kSourceKey});
  const bool one_by_one = std::string(capture.file) == "zero-length";  // each post awaited
  TimeNs now = 1;
  size_t posted = 0;
  const auto post = [&] {
    const Post& p = capture.posts[posted++];
    const device::Sge sge{kSourceIova, p.bytes, kSourceKey};
    device::SendWr wr{};
    wr.wr_id = posted;
    wr.opcode = p.opcode;
    wr.flags = static_cast<uint8_t>(p.flags | shm::kWorkSignaled);
    wr.sges = {&sge, 1};
    wr.imm_be = htonl(p.imm);
    wr.remote_addr = va_;
    wr.rkey = rkey_;
    wr.compare_add = p.compare_add;
    wr.swap = p.swap;
    ASSERT_EQ(qp_->PostSend(wr, now), PostResult::kOk);
    transport_.DoWork(now);
  };
  post();
  while (!one_by_one && posted < capture.posts.size()) post();

  size_t next = 0;
  for (const Parsed& parsed : packets_) {
    if (parsed.from_a) {
      // Time passes until it is sent: at once, or after a wait or a timeout.
      for (int i = 0; i < 10 && next >= recorder_.sent.size(); ++i) {
        if (one_by_one && posted < capture.posts.size() && sends_.all.size() == posted) {
          post();
          continue;
        }
        now = std::max(now + 1, std::min(transport_.NextDeadline(now), now + 1'000'000'000));
        transport_.DoWork(now);
      }
      ASSERT_LT(next, recorder_.sent.size());
      const Recorded& ours = recorder_.sent[next++];
      SCOPED_TRACE(::testing::Message() << "request " << next);
      const wire::PacketView& rxe = parsed.view;
      EXPECT_STREQ(wire::OpcodeName(ours.fields.opcode), wire::OpcodeName(rxe.opcode));
      EXPECT_EQ(ours.fields.psn, rxe.psn);
      EXPECT_EQ(ours.fields.dest_qpn, rxe.dest_qpn);
      EXPECT_EQ(ours.fields.ack_req, rxe.ack_req);
      EXPECT_EQ(ours.fields.solicited, rxe.solicited);
      EXPECT_EQ(ours.fields.pkey, rxe.pkey);
      if (rxe.info().has(wire::kHasReth)) {
        // Of a zero-length operation nobody reads address and key.
        if (rxe.reth.dma_length_bytes != 0) {
          EXPECT_EQ(ours.fields.reth.va, rxe.reth.va);
          EXPECT_EQ(ours.fields.reth.rkey, rxe.reth.rkey);
        }
        EXPECT_EQ(ours.fields.reth.dma_length_bytes, rxe.reth.dma_length_bytes);
      }
      if (rxe.info().has(wire::kHasImmDt)) {
        EXPECT_EQ(ours.fields.imm, rxe.imm);
      }
      if (rxe.info().has(wire::kHasAtomicEth)) {
        EXPECT_EQ(ours.fields.atomic.va, rxe.atomic.va);
        EXPECT_EQ(ours.fields.atomic.rkey, rxe.atomic.rkey);
        EXPECT_EQ(ours.fields.atomic.swap_or_add, rxe.atomic.swap_or_add);
        EXPECT_EQ(ours.fields.atomic.compare, rxe.atomic.compare);
      }
      EXPECT_EQ(ours.payload, Bytes(rxe.payload));
    } else {
      transport_.OnPacket({.local = address_a_, .remote = address_b_}, parsed.view, ++now);
    }
  }
  // What remains is to give up, where rxe gave up.
  for (int i = 0; i < 20 && sends_.all.size() < capture.posts.size(); ++i) {
    now = std::max(now + 1, std::min(transport_.NextDeadline(now), now + 1'000'000'000));
    transport_.DoWork(now);
  }
  EXPECT_EQ(recorder_.sent.size(), next + transport_.counters().tail_probes)
      << "packets that rxe did not send";
  ASSERT_EQ(sends_.all.size(), capture.posts.size());
  for (const device::Wc& wc : sends_.all) {
    EXPECT_EQ(wc.status, &wc == &sends_.all.back() ? capture.last_status : WcStatus::kSuccess);
  }
}

std::string CaptureName(const ::testing::TestParamInfo<Capture>& capture) {
  std::string name = capture.param.file;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rc, RxeReplay, ::testing::ValuesIn(Captures()), CaptureName);

}  // namespace
}  // namespace rdmad::soft
