// Packets from a peer that may send anything, to QPs in all states that take some.
#include "tests/fuzz/input.h"
#include "tests/fuzz/live_qp.h"
#include "tests/fuzz/targets.h"

namespace rdmad::fuzz {
namespace {

constexpr uint32_t kQpCount = 4;
constexpr uint32_t kFirstQpn = 0x11;
constexpr uint32_t kPeerQpn = 0x99;

// Bits of a record's second byte: what of the packet is replaced by something that fits, so that
// the fuzzer need not guess 24 and 32 bit numbers.
enum Fit : uint8_t { kFitPsn = 1, kFitKey = 2, kFitAddress = 4, kFitLength = 8 };

struct World {
  World() {
    for (uint32_t i = 0; i < kQpCount; ++i) {
      qps.push_back(std::make_unique<LiveQp>(transport, sink, own, kFirstQpn + i));
      Start(i);
    }
  }

  // Number 0 and 1 send and receive, 2 has not begun to send, 3 drains.
  void Start(uint32_t i) {
    LiveQp& qp = *qps[i];
    qp.ToRts(peer, kPeerQpn, now);
    if (i == 2) {
      qp.Move(QpState::kReset, now);
      qp.Move(QpState::kInit, now);
      qp.Move(QpState::kRtr, now, peer, kPeerQpn);
    }
    if (i == 3) qp.Move(QpState::kSqd, now);
  }

  void OnPacket(uint32_t i, uint8_t fit, std::span<const uint8_t> bytes) {
    wire::PacketView packet;
    if (wire::ParsePacket(bytes, &packet) != wire::DropReason::kNone) return;
    LiveQp& target = *qps[i];
    packet.dest_qpn = wire::Qpn(kFirstQpn + i);
    const device::QpAttr attr = target.qp->Query();
    // Around what is expected next, either way.
    const auto near = static_cast<uint32_t>(static_cast<int8_t>(packet.psn.value() & 0xff) / 16);
    if ((fit & kFitPsn) != 0) {
      packet.psn = wire::Psn((packet.info().is_response() ? attr.sq_psn : attr.rq_psn) + near);
    }
    if ((fit & kFitKey) != 0) {
      packet.reth.rkey = packet.atomic.rkey = wire::Rkey(target.mr->rkey());
    }
    if ((fit & kFitAddress) != 0) {
      packet.reth.va = LiveQp::kIova + packet.reth.va % LiveQp::kBytes;
      packet.atomic.va = LiveQp::kIova + packet.atomic.va % LiveQp::kBytes / 8 * 8;
    }
    if ((fit & kFitLength) != 0 && packet.info().ends_message()) {
      packet.reth.dma_length_bytes = static_cast<uint32_t>(packet.payload.size());
    }
    transport.OnPacket({.local = own, .remote = peer}, packet, now);
  }

  void PostSend(uint32_t i, uint8_t what, uint16_t bytes) {
    LiveQp& qp = *qps[i];
    const device::Sge sge{LiveQp::kIova + 8u * what, bytes, qp.mr->lkey()};
    device::SendWr wr{};
    wr.opcode = static_cast<device::WrOpcode>(what % 10);
    wr.flags = static_cast<uint8_t>((what >> 4) & ~shm::kWorkInline);
    wr.sges = {&sge, 1};
    wr.remote_addr = LiveQp::kIova;
    wr.rkey = qp.mr->rkey();
    (void)qp.qp->PostSend(wr, now);
  }

  void PostReceive(uint32_t i, uint16_t bytes) {
    const device::Sge sge{LiveQp::kIova + 4096, bytes, qps[i]->mr->lkey()};
    (void)qps[i]->qp->PostRecv({.wr_id = 1, .sges = {&sge, 1}}, now);
  }

  soft::TimeNs now = 1'000'000'000;
  const IpAddress own = IpAddress::FromV4(10, 0, 0, 1);
  const IpAddress peer = IpAddress::FromV4(10, 0, 0, 2);
  // Made once: its tables are large, and empty again after each input.
  static inline Discard sink;
  static inline soft::Transport transport{&sink, &sink};
  std::vector<std::unique_ptr<LiveQp>> qps;
};

}  // namespace

void FuzzTransport(std::span<const uint8_t> bytes) {
  Input input(bytes);
  World world;
  while (!input.empty()) {
    const auto kind = input.Take<uint8_t>();
    const auto fit = input.Take<uint8_t>();
    const auto length = input.Take<uint16_t>();
    const uint32_t i = kind / 64;
    switch (kind % 8) {
      default:
        world.OnPacket(i, fit, input.TakeBytes(length));
        break;
      case 4:
        world.PostSend(i, fit, length);
        break;
      case 5:
        world.PostReceive(i, length);
        break;
      case 6:
        world.now += soft::TimeNs{length} << (fit % 16);
        break;
      case 7:
        world.Start(i);
        break;
    }
    if ((kind & 8) == 0) world.transport.DoWork(world.now);
  }
  for (int turn = 0; turn < 1000 && world.transport.DoWork(world.now) > 0; ++turn) {
  }
}

}  // namespace rdmad::fuzz
