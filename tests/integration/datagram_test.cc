// Datagrams as an application sees them, between two hosts: to a QP and back by the GRH, into a
// shared receive queue, and to a multicast group; and what of it others see on the wire (case 27).
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/packet_capture.h"
#include "tests/support/status_testing.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tools.h"

namespace rdmad::testing {
namespace {

constexpr uint32_t kSlotBytes = 512;
constexpr uint32_t kSlots = 8;

std::array<uint8_t, 16> GidOf(const std::string& group) {
  std::array<uint8_t, 16> gid = {};
  const bool v4 = group.find(':') == std::string::npos;
  if (v4) gid[10] = gid[11] = 0xff;
  EXPECT_EQ(::inet_pton(v4 ? AF_INET : AF_INET6, group.c_str(), &gid[v4 ? 12 : 0]), 1) << group;
  return gid;
}

// A UD QP that is ready, on the device of the test's link.
struct Datagrams {
  DeviceInfo device;
  ProtectionDomain pd{nullptr};
  std::optional<Pool> pool;
  Buffer buffer;
  MemoryRegion mr;
  CompletionQueue sends, receives;
  SharedReceiveQueue srq;
  QueuePair qp;

  std::byte* Slot(uint64_t index) { return buffer.data() + index * kSlotBytes; }
  std::string Text(const Wc& wc) {
    return {reinterpret_cast<const char*>(Slot(wc.wr_id) + kGrhBytes), wc.byte_len - kGrhBytes};
  }
};

class DatagramTest : public TwoHostsTest {
 protected:
  void Make(int host, bool with_srq, std::unique_ptr<Datagrams>* out);
  static uint32_t GidIndex(const DeviceInfo& device, const std::string& address) {
    for (const Gid& gid : device.gids) {
      if (gid.text == address) return gid.index;
    }
    ADD_FAILURE() << "no GID is " << address;
    return 0;
  }
  static void Send(Datagrams& from, const std::string& dest, uint32_t sgid_index, uint32_t qpn,
                   const std::string& text, bool with_imm = false);
  void TalkOver(const std::string& here, const std::string& there, const std::string& group);

  std::unique_ptr<Datagrams> a_, b_;
};

void DatagramTest::Make(int host, bool with_srq, std::unique_ptr<Datagrams>* out) {
  auto made = std::make_unique<Datagrams>();
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceInfo> devices, client(host).GetDevices());
  for (const DeviceInfo& device : devices) {
    if (device.netdev == TwoHosts::kInterface) made->device = device;
  }
  ASSERT_FALSE(made->device.name.empty());
  ASSERT_OK_AND_ASSIGN(made->pd, ProtectionDomain::Alloc(client(host), made->device.index));
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(host), (kSlots + 1) * kSlotBytes));
  made->pool.emplace(std::move(pool));
  ASSERT_OK_AND_ASSIGN(made->buffer, made->pool->Allocate((kSlots + 1) * kSlotBytes));
  ASSERT_OK_AND_ASSIGN(
      made->mr, made->pd.Reg(made->buffer.data(), (kSlots + 1) * kSlotBytes, kAccessLocalWrite));
  ASSERT_OK_AND_ASSIGN(made->sends, CompletionQueue::Create(client(host), made->device.index, 64));
  ASSERT_OK_AND_ASSIGN(made->receives,
                       CompletionQueue::Create(client(host), made->device.index, 64));
  QpInit init;
  init.type = QpType::kUd;
  init.send_cq = made->sends;
  init.recv_cq = made->receives;
  if (with_srq) {
    ASSERT_OK_AND_ASSIGN(made->srq, SharedReceiveQueue::Create(made->pd, {.max_wr = kSlots}));
    init.srq = made->srq;
  }
  ASSERT_OK_AND_ASSIGN(made->qp, QueuePair::Create(made->pd, init));
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrPkeyIndex | kQpAttrPort | kQpAttrQkey;
  attr.state = QpState::kInit;
  attr.qkey = kUdpQkey;
  ASSERT_OK(made->qp.Modify(attr));
  attr.mask = kQpAttrState;
  attr.state = QpState::kRtr;
  ASSERT_OK(made->qp.Modify(attr));
  attr.mask = kQpAttrState | kQpAttrSqPsn;
  attr.state = QpState::kRts;
  ASSERT_OK(made->qp.Modify(attr));
  for (uint64_t i = 0; i < kSlots; ++i) {
    if (with_srq) {
      ASSERT_OK(made->srq.PostRecv(i, made->Slot(i), kSlotBytes, &made->mr));
    } else {
      ASSERT_OK(made->qp.PostRecv(i, made->Slot(i), kSlotBytes, &made->mr));
    }
  }
  *out = std::move(made);
}

void DatagramTest::Send(Datagrams& from, const std::string& dest, uint32_t sgid_index, uint32_t qpn,
                        const std::string& text, bool with_imm) {
  ASSERT_OK_AND_ASSIGN(
      const AddressHandle ah,
      AddressHandle::Create(from.pd, {.dest_gid = GidOf(dest), .sgid_index = sgid_index}));
  std::memcpy(from.Slot(kSlots), text.data(), text.size());
  const Sge sge{reinterpret_cast<uint64_t>(from.Slot(kSlots)), static_cast<uint32_t>(text.size()),
                from.mr.lkey()};
  SendWr wr;
  wr.opcode = with_imm ? WrOpcode::kSendWithImm : WrOpcode::kSend;
  wr.imm_be = 0x01020304;
  wr.sges = {&sge, 1};
  wr.ah = &ah;
  wr.remote_qpn = qpn;
  wr.remote_qkey = kUdpQkey;
  ASSERT_OK(from.qp.PostSend({&wr, 1}));
  ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(from.sends));
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
}

void DatagramTest::TalkOver(const std::string& here, const std::string& there,
                            const std::string& group) {
  Make(0, false, &a_);
  Make(1, true, &b_);
  ASSERT_FALSE(HasFatalFailure());
  const uint32_t a_index = GidIndex(a_->device, here);
  Send(*a_, there, a_index, b_->qp.qpn(), "a question");
  ASSERT_OK_AND_ASSIGN(const Wc question, WaitForWc(b_->receives));
  EXPECT_EQ(b_->Text(question), "a question");
  EXPECT_EQ(question.src_qpn, a_->qp.qpn());
  EXPECT_EQ(question.qpn, b_->qp.qpn());
  ASSERT_NE(question.flags & kWcGrh, 0u);

  // The way back is in the receive.
  ASSERT_OK_AND_ASSIGN(
      const AddressHandle back,
      AddressHandle::CreateFromWc(b_->pd, question, {b_->Slot(question.wr_id), kSlotBytes}));
  std::memcpy(b_->Slot(kSlots), "the answer", 10);
  ASSERT_OK(
      b_->qp.PostUdSend(1, b_->Slot(kSlots), 10, &b_->mr, kSendSignaled, back, question.src_qpn));
  ASSERT_OK_AND_ASSIGN(const Wc answer, WaitForWc(a_->receives));
  EXPECT_EQ(a_->Text(answer), "the answer");

  Send(*a_, there, a_index, b_->qp.qpn(), "", true);
  ASSERT_OK_AND_ASSIGN(const Wc imm, WaitForWc(b_->receives));
  EXPECT_EQ(imm.byte_len, kGrhBytes);
  EXPECT_EQ(imm.imm_be, 0x01020304u);

  ASSERT_OK(b_->qp.AttachMulticast(GidOf(group)));
  ASSERT_OK(a_->qp.AttachMulticast(GidOf(group)));
  Send(*a_, group, a_index, kMulticastQpn, "to all");
  for (Datagrams* end : {a_.get(), b_.get()}) {
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(end->receives));
    EXPECT_EQ(end->Text(wc), "to all");
    EXPECT_EQ(wc.src_qpn, a_->qp.qpn());
  }
  ASSERT_OK(b_->qp.DetachMulticast(GidOf(group)));
  Send(*a_, group, a_index, kMulticastQpn, "to oneself");
  ASSERT_OK(WaitForWc(a_->receives));
  EXPECT_FALSE(WaitForWc(b_->receives, absl::Milliseconds(50)).ok());
  ASSERT_OK(a_->qp.DetachMulticast(GidOf(group)));
  a_.reset();
  b_.reset();
}

TEST_F(DatagramTest, QuestionAnswerAndGroupsAreRoceToOthers) {
  // Before Start(), since fetching a program needs the host's network.
  const absl::StatusOr<std::string> tshark = FindTool("tshark");
  if (!Start({.mtu_bytes = 1500, .wire_packets = true})) return;
  const TempDir folder;
  const std::string pcap = folder.path() + "/ud.pcap";
  ASSERT_OK_AND_ASSIGN(auto capture,
                       PacketCapture::Start(hosts().host(0), TwoHosts::kInterface, pcap));
  TalkOver(TwoHosts::Ipv4(0), TwoHosts::Ipv4(1), "239.77.0.1");
  TalkOver(TwoHosts::Ipv6(0), TwoHosts::Ipv6(1), "ff0e::77");
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK_AND_ASSIGN(const uint64_t packets, capture->Stop());
  // Question, answer, immediate, and two to the group, in each family.
  EXPECT_EQ(packets, 10u);
  ASSERT_OK_AND_ASSIGN(const ProgramResult icrc,
                       RunProgram({"python3", Runfile("tests/support/icrc_check.py"), "--min",
                                   absl::StrCat(packets), pcap}));
  EXPECT_TRUE(icrc.ok()) << LastLines(icrc.output, 20);

  if (!tshark.ok()) GTEST_SKIP() << tshark.status().message();
  // Its heuristic for Mellanox's Ethernet over InfiniBand takes a datagram without payload for one.
  ASSERT_OK_AND_ASSIGN(const ProgramResult text,
                       RunProgram({*tshark, "--disable-protocol", "infiniband.eoib", "-r", pcap,
                                   "-V", "-O", "infiniband"}));
  for (const char* word : {"Unknown", "Malformed", "Invalid", "unknown"}) {
    EXPECT_EQ(text.output.find(word), std::string::npos) << text.output;
  }
  ASSERT_OK_AND_ASSIGN(
      const ProgramResult fields,
      RunProgram({*tshark, "-r", pcap, "-T", "fields", "-e", "infiniband.bth.opcode", "-e",
                  "infiniband.deth.q_key", "-e", "infiniband.bth.destqp"}));
  std::multiset<std::string> kinds;
  std::istringstream lines(fields.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("0x") == std::string::npos && line.find('\t') == std::string::npos) continue;
    EXPECT_NE(line.find("1234567"), std::string::npos) << line;
    kinds.insert(line.find("0xffffff") != std::string::npos ? "group" : "qp");
  }
  EXPECT_EQ(kinds.count("group"), 4u) << fields.output;
  EXPECT_EQ(kinds.count("qp"), 6u) << fields.output;
}

}  // namespace
}  // namespace rdmad::testing
