// Packets from a peer that may send anything, to QPs of every type in every state.
#include "daemon/device/soft/multicast_group.h"
#include "daemon/device/soft/soft_mw.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/live_qp.h"
#include "tests/fuzz/targets.h"

namespace rdmad::fuzz {
namespace {

using device::QpType;

constexpr uint32_t kFirstQpn = 0x11;
constexpr uint32_t kPeerQpn = 0x99;

// Bits of a record's second byte: what of the packet is replaced by something that fits, so that
// the fuzzer need not guess 24 and 32 bit numbers.
enum Fit : uint8_t {
  kFitPsn = 1,
  kFitKey = 2,
  kFitAddress = 4,
  kFitLength = 8,
  kFitOpcode = 16,  // of the QP's transport
  kFitWindow = 32,  // with kFitKey: the QP's window instead of its region
  kMarked = 64,     // comes with "congestion experienced"
};

// What the QPs are. The first four are as old corpora know them.
struct Kind {
  QpType type;
  QpState state;
  bool has_srq;
};
constexpr Kind kKinds[] = {
    {QpType::kRc, QpState::kRts, false},  {QpType::kRc, QpState::kRts, false},
    {QpType::kRc, QpState::kRtr, false},  {QpType::kRc, QpState::kSqd, false},
    {QpType::kRc, QpState::kRts, true},   {QpType::kRc, QpState::kRtr, true},
    {QpType::kUc, QpState::kRts, false},  {QpType::kUc, QpState::kSqd, false},
    {QpType::kUc, QpState::kRts, true},   {QpType::kUd, QpState::kRts, false},
    {QpType::kUd, QpState::kRts, true},   {QpType::kUd, QpState::kRtr, false},
    {QpType::kRc, QpState::kInit, false}, {QpType::kRc, QpState::kErr, true},
    {QpType::kUc, QpState::kErr, false},  {QpType::kUd, QpState::kErr, false},
};
constexpr uint32_t kQpCount = std::size(kKinds);
// Bits 6, 7, 4 and 5 of a record's first byte say which.
constexpr uint32_t QpOf(uint8_t kind) {
  return kind / 64 + (kind & 0x30) / 16 * 4;
}
static_assert(QpOf(0xff) + 1 == kQpCount);

wire::Opcode ForTransport(wire::Opcode opcode, QpType type) {
  constexpr uint8_t kOperation = 0x1f;
  const auto low = static_cast<uint8_t>(static_cast<uint8_t>(opcode) & kOperation);
  const uint8_t high = type == QpType::kRc ? 0 : type == QpType::kUc ? 0x20 : 0x60;
  const wire::OpcodeInfo& info = wire::InfoOf(static_cast<uint8_t>(high | low));
  return info.known() ? static_cast<wire::Opcode>(high | low) : opcode;
}

struct World {
  World() {
    auto made = soft::SoftSrq::Create(&sink, srq_memory.pd, {.max_wr = 16, .max_sge = 4});
    RD_CHECK(made.ok());
    srq = std::move(*made);
    srq->Activate(0);
  }
  ~World() {
    for (Live& live : qps) {
      if (live.member != nullptr) group.Remove(*live.member);
      if (live.window != nullptr) live.window->Deactivate(0);
      live.qp.reset();
    }
    srq->Deactivate(0);
  }

  // One of the QPs, with what belongs to it.
  struct Live {
    std::unique_ptr<LiveQp> qp;
    std::unique_ptr<soft::SoftMw> window;
    std::unique_ptr<soft::SoftAh> handle;
    std::unique_ptr<soft::MulticastMember> member;
  };

  // Made when an input first wants it: most want few.
  Live& At(uint32_t i) {
    Live& live = qps[i];
    if (live.qp != nullptr) return live;
    live.qp =
        std::make_unique<LiveQp>(transport, sink, own, kFirstQpn + i,
                                 LiveInit{kKinds[i].type, kKinds[i].has_srq ? srq.get() : nullptr});
    auto window = soft::SoftMw::Create(transport, live.qp->pd);
    auto handle = soft::SoftAh::Create(live.qp->pd, {.dest = peer}, SourceOf(own));
    RD_CHECK(window.ok() && handle.ok());
    live.window = std::move(*window);
    live.window->Activate(0);
    live.handle = std::move(*handle);
    if (live.qp->datagram != nullptr) {
      live.member = std::make_unique<soft::MulticastMember>(*live.qp->datagram);
      group.Add(*live.member);
    }
    Start(i);
    return live;
  }
  void Start(uint32_t i) { At(i).qp->To(kKinds[i].state, peer, kPeerQpn, now); }

  uint32_t WindowKey(uint32_t i, uint32_t low) {
    return (At(i).window->rkey() & ~0xffu) | (low & 0xff);
  }

  void OnPacket(uint32_t i, uint8_t fit, std::span<const uint8_t> bytes) {
    wire::PacketView packet;
    if (wire::ParsePacket(bytes, &packet) != wire::DropReason::kNone) return;
    const uint8_t ecn = (fit & kMarked) != 0 ? soft::kEcnCe : soft::kEct0;
    LiveQp& target = *At(i).qp;
    packet.dest_qpn = wire::Qpn(kFirstQpn + i);
    const device::QpAttr attr = target.qp->Query();
    if ((fit & kFitOpcode) != 0) {
      packet.opcode = ForTransport(packet.opcode, target.type);
      packet.deth.qkey = wire::Qkey(LiveQp::kQkey);
    }
    // Around what is expected next, either way.
    const auto near = static_cast<uint32_t>(static_cast<int8_t>(packet.psn.value() & 0xff) / 16);
    if ((fit & kFitPsn) != 0) {
      packet.psn = wire::Psn((packet.info().is_response() ? attr.sq_psn : attr.rq_psn) + near);
    }
    if ((fit & kFitKey) != 0) {
      const bool window = (fit & kFitWindow) != 0;
      packet.reth.rkey = packet.atomic.rkey =
          wire::Rkey(window ? WindowKey(i, packet.reth.rkey.value()) : target.mr->rkey());
      packet.invalidate_rkey = wire::Rkey(WindowKey(i, packet.invalidate_rkey.value()));
    }
    if ((fit & kFitAddress) != 0) {
      packet.reth.va = LiveQp::kIova + packet.reth.va % LiveQp::kBytes;
      packet.atomic.va = LiveQp::kIova + packet.atomic.va % LiveQp::kBytes / 8 * 8;
    }
    if ((fit & kFitLength) != 0 && packet.info().ends_message()) {
      packet.reth.dma_length_bytes = static_cast<uint32_t>(packet.payload.size());
    }
    if (target.type == QpType::kUd && (fit & kFitPsn) != 0) {
      packet.dest_qpn = wire::kMulticastQpn;
      transport.OnMulticast(group, {.local = group_address, .remote = peer, .ecn = ecn}, packet,
                            now);
      return;
    }
    transport.OnPacket({.local = own, .remote = peer, .ecn = ecn}, packet, now);
  }

  void PostSend(uint32_t i, uint8_t what, uint16_t bytes) {
    LiveQp& qp = *At(i).qp;
    const device::Sge sge{LiveQp::kIova + 8u * what, bytes, qp.mr->lkey()};
    device::SendWr wr{};
    wr.opcode = static_cast<device::WrOpcode>(what % 10);
    wr.flags = static_cast<uint8_t>((what >> 4) & ~shm::kWorkInline);
    wr.sges = {&sge, 1};
    wr.remote_addr = LiveQp::kIova;
    wr.rkey = qp.mr->rkey();
    wr.ah = At(i).handle.get();
    wr.remote_qpn = kPeerQpn;
    wr.remote_qkey = LiveQp::kQkey;
    if (wr.opcode == device::WrOpcode::kBindMw) {
      wr.rkey = WindowKey(i, what / 10);
      wr.bind_lkey = qp.mr->lkey();
      wr.compare_add = bytes;
      wr.swap = kFullRights;
    } else if (wr.opcode == device::WrOpcode::kLocalInv) {
      wr.imm_be = WindowKey(i, what / 10);
    }
    (void)qp.qp->PostSend(wr, now);
  }

  void PostReceive(uint32_t i, uint16_t bytes) {
    LiveMemory& memory = kKinds[i].has_srq ? srq_memory : *At(i).qp;
    const device::Sge sge{LiveQp::kIova + 4096, bytes, memory.mr->lkey()};
    const device::RecvWr wr{.wr_id = 1, .sges = {&sge, 1}};
    if (kKinds[i].has_srq) {
      (void)srq->PostRecv(wr);
      (void)srq->SetLimit(bytes % 17);
    } else {
      (void)At(i).qp->qp->PostRecv(wr, now);
    }
  }

  static constexpr uint32_t kFullRights =
      device::kAccessRemoteRead | device::kAccessRemoteWrite | device::kAccessRemoteAtomic;

  soft::TimeNs now = 1'000'000'000;
  const IpAddress own = IpAddress::FromV4(10, 0, 0, 1);
  const IpAddress peer = IpAddress::FromV4(10, 0, 0, 2);
  const IpAddress group_address = IpAddress::FromV4(239, 1, 1, 1);
  // Made once: its tables are large, and empty again after each input.
  static inline Discard sink;
  static inline soft::Transport transport{&sink, &sink};
  LiveMemory srq_memory{transport};
  std::unique_ptr<soft::SoftSrq> srq;
  soft::MulticastGroup group;
  Live qps[kQpCount];
};

}  // namespace

void FuzzTransport(std::span<const uint8_t> bytes) {
  Input input(bytes);
  World world;
  while (!input.empty()) {
    const auto kind = input.Take<uint8_t>();
    const auto fit = input.Take<uint8_t>();
    const auto length = input.Take<uint16_t>();
    const uint32_t i = QpOf(kind);
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
