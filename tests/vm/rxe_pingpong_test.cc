// The ibv_*_pingpong programs of rdma-core over rxe against our soft device: queue pairs wired by hand, RC, UC, UD and RC
// with a shared receive queue. A pingpong sends from the buffer that it receives into; so what it says is what we said last.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/base/unique_fd.h"
#include "rdmad/rdmad.h"
#include "tests/support/child_process.h"
#include "tests/support/status_testing.h"
#include "tests/vm/bad_network.h"
#include "tests/vm/kernel_qp.h"
#include "tests/vm/our_qp.h"
#include "tests/vm/peer_socket.h"
#include "tests/vm/pingpong_socket.h"
#include "tests/vm/rxe_bed.h"

namespace rdmad::testing {
namespace {

[[maybe_unused]] const RxeBed& kBed = RxeBed::Get();

constexpr int kPort = 18515;
constexpr int kRounds = 50;
// What a program's buffer is full of in the beginning; that of ibv_srq_pingpong, and what we say to it.
constexpr std::byte kFirst{0x7b};
constexpr std::byte kFirstOfSrq{0};
constexpr std::byte kOursToSrq{0x5a};
constexpr size_t kSlots = 64;

struct Case {
  const char* program;
  QpType type;
  size_t qps;  // more than one: with an SRQ
  Addresses addresses;
  size_t bytes;
  Mtu mtu;
  const char* network = nullptr;  // a BadNetwork, from when the QPs are wired until all is done
};

constexpr std::array kCases = {
    Case{"ibv_ud_pingpong", QpType::kUd, 1, kIpv4, 2048, Mtu::k4096},
    Case{"ibv_ud_pingpong", QpType::kUd, 1, kIpv6, 1, Mtu::k4096},
    Case{"ibv_uc_pingpong", QpType::kUc, 1, kIpv4, 5001, Mtu::k1024},
    Case{"ibv_uc_pingpong", QpType::kUc, 1, kIpv6, 4096, Mtu::k4096},
    Case{"ibv_rc_pingpong", QpType::kRc, 1, kIpv4, 5001, Mtu::k1024},
    Case{"ibv_rc_pingpong", QpType::kRc, 1, kIpv6, 4096, Mtu::k4096},
    Case{"ibv_srq_pingpong", QpType::kRc, 6, kIpv4, 5001, Mtu::k1024},
    Case{"ibv_srq_pingpong", QpType::kRc, 6, kIpv6, 4096, Mtu::k4096},
};

// With losses, which UC and UD do not make up for.
constexpr std::array kLossyCases = {
    Case{"ibv_rc_pingpong", QpType::kRc, 1, kIpv4, 5001, Mtu::k1024, "loss 3%"},
    Case{"ibv_rc_pingpong", QpType::kRc, 1, kIpv6, 5001, Mtu::k1024, "loss 3%"},
    Case{"ibv_srq_pingpong", QpType::kRc, 6, kIpv4, 5001, Mtu::k1024, "loss 3%"},
};

class RxePingpong : public RxeInterop, public ::testing::WithParamInterface<Case> {
 protected:
  static Mtu PathMtu() { return OnTheBed(GetParam().mtu); }
  static size_t Size() { return GetParam().type == QpType::kUd ? InOnePacket(GetParam().bytes) : GetParam().bytes; }
  void SetUp() override {
    RxeInterop::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const Case& c = GetParam();
    slot_bytes_ = Size() + Head();
    // The last slot is what we send.
    ASSERT_OK_AND_ASSIGN(OurHost host,
                         OurHost::Open(client(), pool(), c.addresses.ours, slot_bytes_ * (kSlots + 1)));
    host_.emplace(std::move(host));
    if (c.qps > 1) {
      ASSERT_OK_AND_ASSIGN(srq_, SharedReceiveQueue::Create(host_->pd, {.max_wr = kSlots}));
    }
    for (size_t i = 0; i < c.qps; ++i) {
      ASSERT_OK_AND_ASSIGN(OurQp qp, OurQp::Open(client(), *host_, c.type, srq_));
      qps_.push_back(std::move(qp));
    }
    std::fill_n(Outgoing(), Size(), kFirst);
  }

  void TearDown() override {
    network_.reset();
    qps_.clear();
    srq_ = {};
    host_.reset();
    RxeInterop::TearDown();
  }

  std::string Command() {
    const Case& c = GetParam();
    const auto kernel = KernelHost::Open("rxeA", c.addresses.kernel, 4096);
    EXPECT_OK(kernel);
    std::string command = absl::StrCat(c.program, " -d rxeA -g ", kernel.ok() ? (*kernel)->gid_index : 0, " -n ",
                                       kRounds, " -s ", Size(), " -r ", kSlots);
    if (c.type != QpType::kUd) absl::StrAppend(&command, " -m ", MtuBytes(PathMtu()));
    if (c.qps > 1) absl::StrAppend(&command, " -q ", c.qps);
    return command;
  }
  // ibv_srq_pingpong tells of all QPs that it could have.
  static size_t Exchanged() { return GetParam().qps > 1 ? 256 : 1; }
  std::vector<QpAddress> Ours() const {
    std::vector<QpAddress> ours;
    for (const OurQp& qp : qps_) ours.push_back(qp.Describe(*host_));
    ours.resize(Exchanged());
    return ours;
  }
  void Wire(const std::vector<QpAddress>& peers) {
    ASSERT_GE(peers.size(), qps_.size());
    peers_ = peers;
    for (size_t i = 0; i < qps_.size(); ++i) ASSERT_OK(qps_[i].Connect(*host_, peers[i], PathMtu()));
    for (uint64_t slot = 0; slot < kSlots; ++slot) PostReceive(qps_.front(), slot);
    // The peer, who may send when Wire() is done, is not told to wait over UC and UD.
    ASSERT_OK(qps_.front().AwaitPosted());
    if (GetParam().type == QpType::kUd) {
      ASSERT_OK_AND_ASSIGN(ah_, AddressHandle::Create(host_->pd, {.dest_gid = peers.front().gid,
                                                                  .sgid_index = host_->gid.index}));
    }
    if (GetParam().network != nullptr) network_.emplace(GetParam().network);
  }

  // Answers all that comes, until the program ends.
  void Answer(ChildProcess& program);
  void SendOn(size_t index);
  void ExpectEcho(const Wc& wc);

 private:
  // What stands before the payload of a receive.
  size_t Head() const { return GetParam().type == QpType::kUd ? kGrhBytes : 0; }
  std::byte* Slot(uint64_t slot) { return host_->buffer.data() + slot * slot_bytes_; }
  std::byte* Outgoing() { return Slot(kSlots); }
  void PostReceive(OurQp& qp, uint64_t slot) {
    if (srq_) {
      ASSERT_OK(srq_.PostRecv(slot, Slot(slot), slot_bytes_, &host_->mr));
    } else {
      ASSERT_OK(qp.qp.PostRecv(slot, Slot(slot), slot_bytes_, &host_->mr));
    }
  }

  size_t slot_bytes_ = 0;
  std::optional<OurHost> host_;
  SharedReceiveQueue srq_;
  std::vector<OurQp> qps_;
  std::vector<QpAddress> peers_;
  AddressHandle ah_;
  std::optional<BadNetwork> network_;
  int sent_ = 0;
};

void RxePingpong::SendOn(size_t index) {
  const Case& c = GetParam();
  // One QP takes turns with its peer; several share the buffer, and always say the same.
  std::byte* const out = Outgoing();
  ++sent_;
  for (size_t i = 0; i < Size(); ++i) out[i] = c.qps > 1 ? kOursToSrq : static_cast<std::byte>(i * 7 + sent_);
  const Sge sge = host_->At(kSlots * slot_bytes_, Size());
  SendWr wr;
  wr.sges = {&sge, 1};
  if (c.type == QpType::kUd) {
    wr.ah = &ah_;
    wr.remote_qpn = peers_[index].qpn;
    wr.remote_qkey = qps_[index].qkey;
  }
  ASSERT_OK(qps_[index].qp.PostSend({&wr, 1}));
}

void RxePingpong::ExpectEcho(const Wc& wc) {
  const Case& c = GetParam();
  ASSERT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
  ASSERT_EQ(wc.byte_len, Size() + Head());
  const std::byte* const in = Slot(wc.wr_id) + Head();
  if (c.qps == 1) {
    ASSERT_EQ(std::memcmp(in, Outgoing(), Size()), 0) << "message " << sent_;
    return;
  }
  ASSERT_TRUE(std::all_of(in, in + Size(), [](std::byte b) { return b == kFirstOfSrq || b == kOursToSrq; }))
      << static_cast<int>(*in);
}

void RxePingpong::Answer(ChildProcess& program) {
  int received = 0;
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    bool idle = true;
    for (size_t i = 0; i < qps_.size(); ++i) {
      Wc wc;
      while (qps_[i].receives.Poll({&wc, 1}) == 1) {
        idle = false;
        ++received;
        ExpectEcho(wc);
        PostReceive(qps_[i], wc.wr_id);
        if (HasFatalFailure()) return;
        SendOn(i);
        if (HasFatalFailure()) return;
      }
      // The last one may find the peer's QP gone.
      while (qps_[i].sends.Poll({&wc, 1}) == 1) {
        if (received < kRounds) {
          ASSERT_EQ(wc.status, WcStatus::kSuccess) << WcStatusString(wc.status);
        }
      }
    }
    if (idle && !program.IsRunning()) break;
  }
  EXPECT_GE(received, kRounds);
  if (network_.has_value()) {
    EXPECT_GT(network_->lost(), 0);
  }
  ExpectGoodEnd(program);
}

TEST_P(RxePingpong, KernelPingsUs) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, PeerSocket::Listen(kPort));
  ASSERT_OK_AND_ASSIGN(ChildProcess program, StartKernel(absl::StrCat(Command(), " ", GetParam().addresses.ours)));
  ASSERT_OK_AND_ASSIGN(PeerSocket accepted, PeerSocket::Accept(listener));
  PingpongSocket socket(std::move(accepted));
  ASSERT_OK_AND_ASSIGN(const std::vector<QpAddress> peers, socket.Receive(Exchanged()));
  Wire(peers);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK(socket.Send(Ours()));
  ASSERT_OK(socket.ReceiveDone());
  Answer(program);
}

TEST_P(RxePingpong, WePingTheKernel) {
  // As servers the programs listen on IPv4, whatever the GID is.
  ASSERT_OK_AND_ASSIGN(ChildProcess program, StartKernel(Command()));
  ASSERT_OK_AND_ASSIGN(PeerSocket connected, PeerSocket::Connect(kIpv4.kernel, kPort));
  PingpongSocket socket(std::move(connected));
  ASSERT_OK(socket.Send(Ours()));
  ASSERT_OK_AND_ASSIGN(const std::vector<QpAddress> peers, socket.Receive(Exchanged()));
  Wire(peers);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_OK(socket.SendDone());
  for (size_t i = 0; i < GetParam().qps; ++i) SendOn(i);
  Answer(program);
}

std::string NameOf(const ::testing::TestParamInfo<Case>& test) {
  return absl::StrCat(test.param.program, test.param.addresses.ours[0] == 'f' ? "Ipv6" : "Ipv4");
}

INSTANTIATE_TEST_SUITE_P(, RxePingpong, ::testing::ValuesIn(kCases), NameOf);
INSTANTIATE_TEST_SUITE_P(Loss, RxePingpong, ::testing::ValuesIn(kLossyCases), NameOf);

}  // namespace
}  // namespace rdmad::testing
