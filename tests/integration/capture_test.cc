// What the daemons put on the wire is RoCEv2 to others, too: a session with every operation is
// captured, Wireshark's dissector must understand every packet, and an ICRC check that shares no
// code with the daemon must agree with each (case 27).
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/integration/capture_wired.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/pattern.h"
#include "tests/integration/testbed.h"
#include "tests/support/file.h"
#include "tests/support/packet_capture.h"
#include "tests/support/status_testing.h"
#include "tests/support/tools.h"

namespace rdmad::testing {
namespace {

// Opcodes that the large session must show; datagrams are datagram_test's. Source: IBTA vol. 1,
// OpCode field.
const std::set<int> kExpectedOpcodes = {
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05,  // SEND first, middle, last, last with immediate, only, ...
    0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b,  // RDMA WRITE, the same
    0x0c,                                // RDMA READ request
    0x0d, 0x0e, 0x0f, 0x10,              // RDMA READ response first, middle, last, only
    0x11, 0x12,                          // ACK, of an atomic
    0x13, 0x14,                          // compare and swap, fetch and add
    0x16, 0x17,                          // SEND with invalidate last, only
    0x20, 0x21, 0x22, 0x23, 0x24, 0x25,  // UC SEND, as of RC
    0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b,  // UC RDMA WRITE
    0x64,                                // UD SEND only: the connection manager
};

class CaptureTest : public TwoHostsTest {
 protected:
  // Every operation in every size from which something follows for the packets.
  void RunEveryOperation(const std::string& address);
  void Post(QpPair& pair, const SendWr& wr, WcStatus expected = WcStatus::kSuccess) {
    ASSERT_OK(pair.active.id->qp().PostSend({&wr, 1}));
    ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.active_cq));
    EXPECT_EQ(wc.status, expected);
  }

  // The values of one field in all packets, by tshark. Its heuristic for RPC over RDMA takes a SEND
  // without payload, which is legal, for a message of its own that is cut off. Packets without it
  // give an empty line.
  std::vector<std::string> Fields(const std::string& field, const std::string& filter = "") {
    std::vector<std::string> argv = {
        tshark_, "--disable-protocol", "rpcordma", "-r", pcap_, "-T", "fields", "-e", field};
    if (!filter.empty()) argv.insert(argv.end(), {"-Y", filter});
    const absl::StatusOr<ProgramResult> result = RunProgram(argv);
    EXPECT_OK(result);
    if (!result.ok()) return {};
    EXPECT_TRUE(result->ok()) << result->output;
    std::vector<std::string> lines;
    std::istringstream text(result->output);
    for (std::string line; std::getline(text, line);) {
      if (line.find("Running as user") == std::string::npos) lines.push_back(line);
    }
    return lines;
  }

  void CheckIcrcs(uint64_t packets) const;
  // By tshark.
  void CheckThatAllIsUnderstood(uint64_t packets);
  std::set<int> Opcodes(const std::string& filter) {
    std::set<int> opcodes;
    for (const std::string& value : Fields("infiniband.bth.opcode", filter)) {
      opcodes.insert(std::stoi(value, nullptr, 0));
    }
    return opcodes;
  }

  const TempDir folder_;
  const std::string pcap_ = folder_.path() + "/session.pcap";
  std::string tshark_;
};

void CaptureTest::CheckIcrcs(uint64_t packets) const {
  ASSERT_OK_AND_ASSIGN(const ProgramResult icrc,
                       RunProgram({"python3", Runfile("tests/support/icrc_check.py"), "--min",
                                   absl::StrCat(packets), pcap_}));
  EXPECT_TRUE(icrc.ok()) << LastLines(icrc.output, 20);
}

void CaptureTest::CheckThatAllIsUnderstood(uint64_t packets) {
  EXPECT_EQ(Fields("frame.number").size(), packets);
  // All are understood to the end.
  EXPECT_EQ(Fields("frame.number", "not infiniband"), std::vector<std::string>{});
  EXPECT_EQ(Fields("frame.number", "_ws.malformed"), std::vector<std::string>{});
  EXPECT_EQ(Fields("frame.number", "_ws.expert.severity >= \"Warning\""),
            std::vector<std::string>{});
  ASSERT_OK_AND_ASSIGN(const ProgramResult text,
                       RunProgram({tshark_, "--disable-protocol", "rpcordma", "-r", pcap_, "-V",
                                   "-O", "infiniband", "-Y",
                                   // It has no words for CNPs.
                                   "infiniband.bth.opcode != 0x81"}));
  // The name of an operation.
  const std::string said = absl::StrReplaceAll(text.output, {{"Invalidate", ""}});
  for (const char* word : {"Unknown", "Malformed", "Invalid", "unknown"}) {
    const size_t at = said.find(word);
    EXPECT_EQ(at, std::string::npos) << said.substr(at > 1500 ? at - 1500 : 0, 1600);
  }
}

void CaptureTest::RunEveryOperation(const std::string& address) {
  constexpr uint32_t kMtu = 1024;
  constexpr uint32_t kBytes = 64 * kMtu;
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), kBytes));
  ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(client(1), kBytes));
  ASSERT_OK_AND_ASSIGN(Buffer local, pool.Allocate(kBytes));
  ASSERT_OK_AND_ASSIGN(Buffer remote, peer_pool.Allocate(kBytes));
  FillPattern(local.bytes(), 1);
  ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), address));
  ASSERT_OK_AND_ASSIGN(MemoryRegion local_region,
                       pair.active.id->pd().value().Reg(local.data(), kBytes, kAccessLocalWrite));
  ASSERT_OK_AND_ASSIGN(
      MemoryRegion remote_region,
      pair.passive->pd().value().Reg(remote.data(), kBytes,
                                     kAccessLocalWrite | kAccessRemoteRead | kAccessRemoteWrite));
  const auto wr_of = [&](WrOpcode opcode, uint32_t size, Sge* sge) {
    *sge = {reinterpret_cast<uint64_t>(local.data()), size, local_region.lkey()};
    SendWr wr;
    wr.opcode = opcode;
    if (size > 0) wr.sges = {sge, 1};
    wr.imm_be = 0x01020304;
    wr.remote_addr = reinterpret_cast<uint64_t>(remote.data());
    wr.rkey = remote_region.rkey();
    return wr;
  };
  for (const uint32_t size : {0u, 1u, 2u, 3u, 4u, 5u, kMtu - 1, kMtu, kMtu + 1, 3 * kMtu + 2}) {
    for (const WrOpcode opcode : {WrOpcode::kSend, WrOpcode::kSendWithImm, WrOpcode::kRdmaWrite,
                                  WrOpcode::kRdmaWriteWithImm, WrOpcode::kRdmaRead}) {
      const bool takes_receive = opcode != WrOpcode::kRdmaWrite && opcode != WrOpcode::kRdmaRead;
      if (takes_receive) {
        ASSERT_OK(pair.passive->qp().PostRecv(1, remote.data(), kBytes, &remote_region));
      }
      Sge sge;
      Post(pair, wr_of(opcode, size, &sge));
      if (takes_receive) {
        ASSERT_OK_AND_ASSIGN(const Wc wc, WaitForWc(pair.passive_cq));
        EXPECT_EQ(wc.status, WcStatus::kSuccess);
      }
    }
  }
  // Receiver not ready, then ready.
  QpAttr attr;
  attr.mask = kQpAttrMinRnrTimer;
  attr.min_rnr_timer = 12;
  ASSERT_OK(pair.passive->qp().Modify(attr));
  Sge sge;
  const SendWr early = wr_of(WrOpcode::kSend, 100, &sge);
  ASSERT_OK(pair.active.id->qp().PostSend({&early, 1}));
  EXPECT_FALSE(WaitForWc(pair.active_cq, absl::Milliseconds(20)).ok());
  ASSERT_OK(pair.passive->qp().PostRecv(1, remote.data(), kBytes, &remote_region));
  ASSERT_OK(WaitForWc(pair.active_cq));
  ASSERT_OK(WaitForWc(pair.passive_cq));
  // A large one, which goes out in batches.
  Sge large;
  Post(pair, wr_of(WrOpcode::kRdmaWrite, kBytes, &large));
  // In order to the end.
  ASSERT_OK(pair.active.id->Disconnect());
  ASSERT_OK(ExpectEvent(*pair.listener.channel, CmEventType::kDisconnected));
  ASSERT_OK(ExpectEvent(*pair.active.channel, CmEventType::kDisconnected));

  // A refused access.
  ASSERT_OK_AND_ASSIGN(QpPair refused, ConnectQps(client(0), client(1), address));
  SendWr wrong = wr_of(WrOpcode::kRdmaRead, 8, &sge);
  wrong.rkey ^= 0x100;
  Post(refused, wrong, WcStatus::kRemAccessErr);
  // A refused connection.
  ASSERT_OK_AND_ASSIGN(const Address closed, Address::Parse(WithPort(address, 9)));
  ASSERT_OK_AND_ASSIGN(ActiveId nobody, Resolve(client(0), closed));
  ASSERT_OK(nobody.id->CreateQp(nullptr, {}));
  ASSERT_OK(nobody.id->Connect());
  ASSERT_OK(ExpectEvent(*nobody.channel, CmEventType::kRejected));
}

TEST_F(CaptureTest, WiresharkAndAnIndependentIcrcUnderstandEveryPacket) {
  // Before Start(), since fetching a program needs the host's network.
  const absl::StatusOr<std::string> tshark = FindTool("tshark");
  if (!Start({.mtu_bytes = 1500, .wire_packets = true})) return;
  ASSERT_OK_AND_ASSIGN(auto capture,
                       PacketCapture::Start(hosts().host(0), TwoHosts::kInterface, pcap_));
  RunEveryOperation(TwoHosts::Ipv4(1));
  RunEveryOperation(TwoHosts::Ipv6(1));
  RunWiredOperations(client(0), client(1), TwoHosts::Ipv4(0), TwoHosts::Ipv4(1));
  RunWiredOperations(client(0), client(1), TwoHosts::Ipv6(0), TwoHosts::Ipv6(1));
  RunDatagramIds(client(0), client(1), TwoHosts::Ipv4(1));
  RunDatagramIds(client(0), client(1), TwoHosts::Ipv6(1));
  RunLateAnswer(client(0), client(1), TwoHosts::Ipv6(1));
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK_AND_ASSIGN(const uint64_t packets, capture->Stop());
  std::cout << packets << " packets\n";

  ASSERT_NO_FATAL_FAILURE(CheckIcrcs(packets));

  if (!tshark.ok()) GTEST_SKIP() << tshark.status().message();
  tshark_ = *tshark;
  ASSERT_NO_FATAL_FAILURE(CheckThatAllIsUnderstood(packets));
  // And they are what was to be seen.
  for (const char* family : {"ip", "ipv6"}) {
    EXPECT_EQ(Opcodes(family), kExpectedOpcodes) << family;
    // Of the connection manager: REQ, MRA, REJ, REP, RTU, DREQ, DREP, and the request and reply of
    // SIDR. Source: IBTA vol. 1, CM MADs.
    std::set<int> attributes;
    for (const std::string& value :
         Fields("infiniband.mad.attributeid", absl::StrCat(family, " and infiniband.mad"))) {
      attributes.insert(std::stoi(value, nullptr, 0));
    }
    std::set<int> expected = {0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18};
    if (std::string(family) == "ipv6") expected.insert(0x11);  // it takes its time
    EXPECT_EQ(attributes, expected) << family;
  }
  // Case 27 asks about the migration bit: rxe sends 0 in all of the packets in
  // tests/data/rxe-pcaps, and so do we.
  for (const std::string& bit : Fields("infiniband.bth.m")) EXPECT_EQ(bit, "0");
}

// A switch that marks what it forwards, and the notifications that answer it.
TEST_F(CaptureTest, MarkedPacketsAndTheirNotificationsAreUnderstood) {
  constexpr int kCnpOpcode = 0x81;  // Source: IBTA annex A17, "RoCEv2 Congestion Management"
  constexpr uint32_t kBytes = 64 * 1024;
  const absl::StatusOr<std::string> tshark = FindTool("tshark");
  if (!Start({.mtu_bytes = 1500, .wire = true})) return;
  hosts().wire()->SetBottleneck(
      {.bytes_per_s = 100'000'000, .limit_bytes = 10'000'000, .mark_bytes = 0});
  ASSERT_OK_AND_ASSIGN(Pool pool, Pool::Create(client(0), kBytes));
  ASSERT_OK_AND_ASSIGN(Pool peer_pool, Pool::Create(client(1), kBytes));
  ASSERT_OK_AND_ASSIGN(Buffer local, pool.Allocate(kBytes));
  ASSERT_OK_AND_ASSIGN(Buffer remote, peer_pool.Allocate(kBytes));
  FillPattern(local.bytes(), 1);
  ASSERT_OK_AND_ASSIGN(auto capture,
                       PacketCapture::Start(hosts().host(1), TwoHosts::kInterface, pcap_));
  for (const std::string& peer : {TwoHosts::Ipv4(1), TwoHosts::Ipv6(1)}) {
    ASSERT_OK_AND_ASSIGN(QpPair pair, ConnectQps(client(0), client(1), peer));
    ASSERT_OK_AND_ASSIGN(const MemoryRegion from,
                         pair.active.id->pd().value().Reg(local.data(), kBytes, kAccessLocalWrite));
    ASSERT_OK_AND_ASSIGN(const MemoryRegion to,
                         pair.passive->pd().value().Reg(
                             remote.data(), kBytes, kAccessLocalWrite | kAccessRemoteWrite));
    const Sge sge = {reinterpret_cast<uint64_t>(local.data()), kBytes, from.lkey()};
    SendWr wr;
    wr.opcode = WrOpcode::kRdmaWrite;
    wr.sges = {&sge, 1};
    wr.remote_addr = reinterpret_cast<uint64_t>(remote.data());
    wr.rkey = to.rkey();
    Post(pair, wr);
    EXPECT_EQ(PatternMismatch(remote.bytes(), 1), std::nullopt);
    FillPattern(remote.bytes(), 2);
  }
  ASSERT_OK_AND_ASSIGN(const uint64_t packets, capture->Stop());
  EXPECT_GT(hosts().wire()->bottleneck_counts().marked, 0u);
  ASSERT_NO_FATAL_FAILURE(CheckIcrcs(packets));

  if (!tshark.ok()) GTEST_SKIP() << tshark.status().message();
  tshark_ = *tshark;
  ASSERT_NO_FATAL_FAILURE(CheckThatAllIsUnderstood(packets));
  EXPECT_EQ(Opcodes("ip").count(kCnpOpcode), 1u);
  EXPECT_EQ(Opcodes("ipv6").count(kCnpOpcode), 1u);
  EXPECT_FALSE(Fields("frame.number", "ip.dsfield.ecn == 3").empty());
  EXPECT_FALSE(Fields("frame.number", "ipv6.tclass.ecn == 3").empty());
}

}  // namespace
}  // namespace rdmad::testing
