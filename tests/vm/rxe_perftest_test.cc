// perftest's programs (ib_send_bw and its like) over rxe against our soft device: first they are the clients that begin the
// operations, then the servers on whose memory or receives we do the same. They check no bytes; we check what arrives here,
// the arithmetic of atomics, and that what is read twice is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "daemon/base/unique_fd.h"
#include "rdmad/rdmad.h"
#include "tests/support/child_process.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/our_qp.h"
#include "tests/vm/perftest_socket.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

constexpr int kPort = 18515;
// How often; many enough for a bad network to lose some.
constexpr int kFewRounds = 10;
constexpr int kManyRounds = 100;
constexpr std::byte kUntouched{0xee};
// What we send from lies at 0, what the peer may use here. Messages of up to half a page are put beside each other.
constexpr size_t kSink = 64 << 10;
constexpr size_t kBytes = 2 * kSink;
constexpr size_t kAtomicBytes = 8;

struct Case {
  const char* program;
  const char* options;
  WrOpcode opcode;
  QpType type;
  bool latency;  // sends and writes: each side answers the other's
  Addresses addresses;
  size_t bytes;
  Mtu mtu;
  const char* network = nullptr;  // a BadNetwork, from when the QPs are wired until all is done
};

constexpr WrOpcode kSend = WrOpcode::kSend, kWrite = WrOpcode::kRdmaWrite, kRead = WrOpcode::kRdmaRead;
constexpr QpType kRc = QpType::kRc, kUc = QpType::kUc, kUd = QpType::kUd;

// Each program with the types of QP that it has, one and several packets a message, IPv4 and IPv6.
constexpr std::array kCases = {
    Case{"ib_send_bw", "", kSend, kRc, false, kIpv4, 5001, Mtu::k1024},
    Case{"ib_send_bw", "-c UC", kSend, kUc, false, kIpv6, 5001, Mtu::k4096},
    Case{"ib_send_bw", "-c UD", kSend, kUd, false, kIpv4, 1024, Mtu::k1024},
    Case{"ib_send_lat", "", kSend, kRc, true, kIpv6, 5001, Mtu::k4096},
    Case{"ib_send_lat", "-c UC", kSend, kUc, true, kIpv4, 64, Mtu::k1024},
    Case{"ib_send_lat", "-c UD", kSend, kUd, true, kIpv6, 64, Mtu::k1024},
    Case{"ib_write_bw", "", kWrite, kRc, false, kIpv4, 5001, Mtu::k1024},
    Case{"ib_write_bw", "-c UC", kWrite, kUc, false, kIpv6, 64, Mtu::k1024},
    Case{"ib_write_lat", "", kWrite, kRc, true, kIpv6, 5001, Mtu::k4096},
    Case{"ib_write_lat", "-c UC", kWrite, kUc, true, kIpv4, 64, Mtu::k1024},
    Case{"ib_read_bw", "", kRead, kRc, false, kIpv6, 5001, Mtu::k4096},
    Case{"ib_read_lat", "", kRead, kRc, true, kIpv4, 64, Mtu::k1024},
    Case{"ib_atomic_bw", "-A FETCH_AND_ADD", WrOpcode::kFetchAdd, kRc, false, kIpv4, kAtomicBytes, Mtu::k1024},
    Case{"ib_atomic_lat", "-A CMP_AND_SWAP", WrOpcode::kCompareSwap, kRc, true, kIpv6, kAtomicBytes, Mtu::k1024},
};

// With losses. Sends of UC and UD are left out: whoever counts them waits for each.
constexpr std::array kLossyCases = {
    Case{"ib_send_bw", "", kSend, kRc, false, kIpv4, 5001, Mtu::k1024, "loss 6%"},
    Case{"ib_write_bw", "", kWrite, kRc, false, kIpv6, 5001, Mtu::k1024, "loss 6%"},
    Case{"ib_write_bw", "-c UC", kWrite, kUc, false, kIpv4, 5001, Mtu::k1024, "loss 6%"},
    Case{"ib_read_bw", "", kRead, kRc, false, kIpv4, 5001, Mtu::k1024, "loss 6%"},
    Case{"ib_read_lat", "", kRead, kRc, true, kIpv6, 5001, Mtu::k1024, "loss 6%"},
    Case{"ib_atomic_bw", "-A FETCH_AND_ADD", WrOpcode::kFetchAdd, kRc, false, kIpv6, kAtomicBytes, Mtu::k1024,
         "loss 6%"},
};

class RxePerftest : public RxeInterop, public ::testing::WithParamInterface<Case> {
 protected:
  void Open() {
    ASSERT_OK_AND_ASSIGN(OurHost host, OurHost::Open(client(), pool(), GetParam().addresses.ours, kBytes));
    host_.emplace(std::move(host));
    std::fill_n(host_->buffer.data(), kSink, std::byte{0x5a});
    // Compare-and-swap's 0 is found.
    std::fill_n(Sink(), kSink, IsAtomic() ? std::byte{0} : kUntouched);
    ASSERT_OK_AND_ASSIGN(OurQp qp, OurQp::Open(client(), *host_, GetParam().type));
    qp_.emplace(std::move(qp));
  }
  void Close() {
    network_.reset();
    ah_ = {};
    qp_.reset();
    host_.reset();
  }
  void TearDown() override {
    Close();
    RxeInterop::TearDown();
  }

  static int Rounds() { return GetParam().network == nullptr ? kFewRounds : kManyRounds; }
  static Mtu PathMtu() { return OnTheBed(GetParam().mtu); }
  static bool IsAtomic() {
    return GetParam().opcode == WrOpcode::kFetchAdd || GetParam().opcode == WrOpcode::kCompareSwap;
  }
  static bool HasReads() { return IsAtomic() || GetParam().opcode == kRead; }
  static bool Sends() { return GetParam().opcode == kSend; }
  // Both sides send or write in turns.
  static bool TakesTurns() { return GetParam().latency && !HasReads(); }
  static bool ServerBegins() { return TakesTurns() && !Sends(); }
  // How often the two wait for each other before the first operation.
  static int WaitsFirst() { return Sends() || GetParam().latency ? 3 : 2; }
  static bool reliable() { return GetParam().type == QpType::kRc; }

  std::byte* Sink() { return host_->buffer.data() + kSink; }
  size_t Head() const { return GetParam().type == QpType::kUd ? kGrhBytes : 0; }
  std::string Command() {
    const Case& c = GetParam();
    const auto kernel = KernelHost::Open("rxeA", c.addresses.kernel, 4096);
    EXPECT_OK(kernel);
    std::string command = absl::StrCat(c.program, " -d rxeA -F -x ", kernel.ok() ? (*kernel)->gid_index : 0, " -n ",
                                       Rounds(), " -m ", MtuBytes(PathMtu()));
    if (!IsAtomic()) absl::StrAppend(&command, " -s ", c.bytes);
    if (HasReads()) absl::StrAppend(&command, " -o ", kReads);
    if (c.options[0] != '\0') absl::StrAppend(&command, " ", c.options);
    return command;
  }
  PerftestEnd Ours() {
    return {qp_->Describe(*host_), HasReads() ? kReads : 1, host_->mr.rkey(), reinterpret_cast<uint64_t>(Sink())};
  }

  // Before the program hears of it, since over UC and UD it is not told to wait.
  void Wire(const PerftestEnd& peer) {
    peer_ = peer;
    ASSERT_OK(qp_->Connect(*host_, peer.qp, PathMtu()));
    if (GetParam().type == QpType::kUd) {
      ASSERT_OK_AND_ASSIGN(ah_, AddressHandle::Create(host_->pd, {.dest_gid = peer.qp.gid,
                                                                  .sgid_index = host_->gid.index}));
    }
    if (GetParam().network != nullptr) network_.emplace(GetParam().network);
    if (!Sends()) return;
    for (int i = 0; i < Rounds(); ++i) {
      ASSERT_OK(qp_->qp.PostRecv(i, Sink(), GetParam().bytes + Head(), &host_->mr));
    }
    ASSERT_OK(qp_->AwaitPosted());
  }

  // All has been done that is looked at.
  void EndLosses() {
    if (!network_.has_value()) return;
    EXPECT_GT(network_->lost(), 0);
    network_.reset();
  }

  // One operation of the case's kind on the peer.
  void Ask(uint64_t compare_add = 1, uint64_t swap = 0) {
    const Case& c = GetParam();
    const Sge sge = host_->At(0, c.bytes);
    SendWr wr;
    wr.opcode = c.opcode;
    wr.sges = {&sge, 1};
    wr.remote_addr = peer_.addr;
    wr.rkey = peer_.rkey;
    wr.compare_add = compare_add;
    wr.swap = swap;
    if (c.type == QpType::kUd) {
      wr.ah = &ah_;
      wr.remote_qpn = peer_.qp.qpn;
      wr.remote_qkey = qp_->qkey;
    }
    ASSERT_OK_AND_ASSIGN(const Wc wc, qp_->Do(wr));
    ASSERT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
  }
  uint64_t& Result() { return *reinterpret_cast<uint64_t*>(host_->buffer.data()); }

  // Turns with a latency test. The number of a write is its last byte.
  void TakeTurn() {
    host_->buffer.data()[GetParam().bytes - 1] = static_cast<std::byte>(++turns_);
    Ask();
  }
  bool TurnCame() {
    if (!Sends()) {
      return std::atomic_ref<std::byte>(Sink()[GetParam().bytes - 1]).load(std::memory_order_acquire) ==
             static_cast<std::byte>(arrived_ + 1);
    }
    Wc wc;
    if (qp_->receives.Poll({&wc, 1}) != 1) return false;
    EXPECT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
    EXPECT_EQ(wc.byte_len, GetParam().bytes + Head());
    return true;
  }

  void OperateOnThePeer(const absl::Time deadline);
  void ExpectTouched();
  void ExpectTable();

  static constexpr uint32_t kReads = 4;
  std::optional<OurHost> host_;
  std::optional<OurQp> qp_;
  PerftestEnd peer_;
  AddressHandle ah_;
  std::optional<BadNetwork> network_;
  int turns_ = 0;    // that we took
  int arrived_ = 0;  // messages, or turns, of the peer
};

// What the program has done to our memory.
void RxePerftest::ExpectTouched() {
  const Case& c = GetParam();
  if (c.opcode == WrOpcode::kFetchAdd) {
    uint64_t sum = 0;
    for (size_t at = 0; at < kSink; at += kAtomicBytes) sum += *reinterpret_cast<uint64_t*>(Sink() + at);
    EXPECT_EQ(sum, static_cast<uint64_t>(Rounds()));
  }
  if (HasReads()) return;
  const auto untouched = std::count(Sink() + Head(), Sink() + Head() + c.bytes, kUntouched);
  EXPECT_LE(static_cast<size_t>(untouched), c.bytes / 10) << "of " << c.bytes << " bytes so many did not come";
  // Long messages all go to one place.
  const size_t end = Head() + (c.bytes > 2048 || Sends() ? c.bytes : 4096);
  EXPECT_EQ(Sink()[end], kUntouched);
}

// The line of the program's table: bytes, rounds, figures.
void RxePerftest::ExpectTable() {
  const std::string output = ReadFile(output_file());
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() > 3 && words[0] == absl::StrCat(GetParam().bytes) && words[1] == absl::StrCat(Rounds())) return;
  }
  ADD_FAILURE() << "no figures: " << output;
}

TEST_P(RxePerftest, KernelAsksUs) {
  for (int tries = reliable() ? 1 : kUnreliableTries; tries > 0; --tries) {
    Open();
    ASSERT_FALSE(HasFatalFailure());
    arrived_ = turns_ = 0;
    ASSERT_OK_AND_ASSIGN(const UniqueFd listener, PeerSocket::Listen(kPort));
    // The programs meet over IPv4, whatever the GIDs are.
    ASSERT_OK_AND_ASSIGN(ChildProcess program, StartKernel(absl::StrCat(Command(), " ", kIpv4.ours)));
    ASSERT_OK_AND_ASSIGN(PeerSocket accepted, PeerSocket::Accept(listener));
    PerftestSocket socket(std::move(accepted));
    ASSERT_OK(socket.AnswerGreeting(PathMtu()));
    ASSERT_OK_AND_ASSIGN(const PerftestEnd peer, socket.Hear());
    Wire(peer);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_OK(socket.Say(Ours()));
    absl::Time deadline = absl::Now() + (reliable() ? kPatience : kUnreliablePatience);
    bool goes_on = true;
    while (goes_on && absl::Now() < deadline) {
      ASSERT_OK_AND_ASSIGN(goes_on, socket.AnswerWhatIsThere(Ours()));
      if (!Sends() && !TakesTurns()) continue;
      const bool begins = ServerBegins() && turns_ == 0 && socket.heard() == 1 + WaitsFirst();
      if (!begins) {
        if (!TurnCame()) continue;
        ++arrived_;
      }
      if (TakesTurns() && turns_ < Rounds()) TakeTurn();
      ASSERT_FALSE(HasFailure());
    }
    if (goes_on && !reliable()) {
      std::cerr << "a message is lost. What rdmad has counted by now:\n" << WhatRdmadCounted();
      program.Kill();
      Close();
      continue;
    }
    ASSERT_FALSE(goes_on) << "the program does not end";
    while (arrived_ < Rounds() && Sends() && TurnCame()) ++arrived_;
    if (Sends() || TakesTurns()) {
      // Without turns, the sender does not know what a network lost.
      EXPECT_GE(arrived_, reliable() || TakesTurns() ? Rounds() : 1);
    }
    EndLosses();
    ExpectTouched();
    ExpectGoodEnd(program);
    ExpectTable();
    return;
  }
  FAIL() << "a message is lost each time";
}

// The part of the program that measures.
void RxePerftest::OperateOnThePeer(absl::Time deadline) {
  if (GetParam().opcode == WrOpcode::kCompareSwap) {
    // What is there is not known; the first finds out, unless it is 0.
    ASSERT_NO_FATAL_FAILURE(Ask(0, 1));
    uint64_t there = Result() == 0 ? 1 : Result();
    for (int i = 1; i < Rounds(); ++i) {
      const uint64_t next = static_cast<uint64_t>(i) * 1000;
      ASSERT_NO_FATAL_FAILURE(Ask(there, next));
      EXPECT_EQ(Result(), there);
      there = next;
    }
    return;
  }
  std::optional<uint64_t> last;
  std::vector<std::byte> first;
  for (int i = 0; i < Rounds(); ++i) {
    if (TakesTurns()) {
      if (!ServerBegins()) TakeTurn();
      while (!HasFatalFailure() && !TurnCame()) {
        if (absl::Now() > deadline) return;
      }
      ++arrived_;
      if (ServerBegins()) TakeTurn();
      if (HasFatalFailure()) return;
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(Ask());
    const std::byte* const data = host_->buffer.data();
    if (GetParam().opcode == WrOpcode::kFetchAdd) {
      if (last.has_value()) {
        EXPECT_EQ(Result(), *last + 1);
      }
      last = Result();
    } else if (GetParam().opcode == kRead) {
      EXPECT_LT(std::count(data, data + GetParam().bytes, std::byte{0x5a}), static_cast<ptrdiff_t>(GetParam().bytes / 10 + 5));
      if (first.empty()) first.assign(data, data + GetParam().bytes);
      EXPECT_EQ(std::memcmp(first.data(), data, first.size()), 0);
      std::fill_n(host_->buffer.data(), GetParam().bytes, std::byte{0x5a});
    }
  }
}

TEST_P(RxePerftest, WeAskTheKernel) {
  for (int tries = reliable() ? 1 : kUnreliableTries; tries > 0; --tries) {
    Open();
    ASSERT_FALSE(HasFatalFailure());
    arrived_ = turns_ = 0;
    ASSERT_OK_AND_ASSIGN(ChildProcess program, StartKernel(Command()));
    ASSERT_OK_AND_ASSIGN(PeerSocket connected, PeerSocket::Connect(kIpv4.kernel, kPort));
    PerftestSocket socket(std::move(connected));
    ASSERT_OK(socket.Greet(PathMtu()));
    ASSERT_OK_AND_ASSIGN(const PerftestEnd peer, socket.Exchange(Ours()));
    Wire(peer);
    ASSERT_FALSE(HasFatalFailure());
    for (int i = 0; i < WaitsFirst(); ++i) ASSERT_OK(socket.Exchange(Ours()));
    OperateOnThePeer(absl::Now() + (reliable() ? kPatience : kUnreliablePatience));
    ASSERT_FALSE(HasFatalFailure());
    const bool whole = !TakesTurns() || arrived_ == Rounds();
    EXPECT_TRUE(whole || !reliable());
    absl::Status end = whole ? absl::OkStatus() : absl::DeadlineExceededError("a message is lost");
    // A latency test of writes has nothing more to say.
    if (whole && (GetParam().opcode != kWrite || !GetParam().latency)) {
      end = socket.Exchange(Ours()).status();
      if (end.ok() && !Sends() && !GetParam().latency) {
        end = socket.ReportFigures(GetParam().bytes, Rounds());
        if (end.ok()) end = socket.Exchange(Ours()).status();
      }
      if (end.ok()) end = socket.SayDone();
    }
    if (!end.ok() && !reliable()) {
      std::cerr << end.ToString() << ". What rdmad has counted by now:\n" << WhatRdmadCounted();
      program.Kill();
      Close();
      continue;
    }
    ASSERT_OK(end);
    EndLosses();
    ExpectGoodEnd(program);
    // The others only say what the client measures.
    if (Sends() || TakesTurns()) ExpectTable();
    return;
  }
  FAIL() << "a message is lost each time";
}

std::string NameOf(const ::testing::TestParamInfo<Case>& test) {
  const char* const type = test.param.type == kRc ? "Rc" : test.param.type == kUc ? "Uc" : "Ud";
  return absl::StrCat(test.param.program, type, test.param.addresses.ours[0] == 'f' ? "Ipv6" : "Ipv4");
}

INSTANTIATE_TEST_SUITE_P(, RxePerftest, ::testing::ValuesIn(kCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Loss, RxePerftest, ::testing::ValuesIn(kLossyCases), NameOf);

}  // namespace
}  // namespace rdmad::testing
