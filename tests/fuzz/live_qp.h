// A QP of the soft device with memory of its own, for the targets that need live ones.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/device/soft/soft_ah.h"
#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/soft_srq.h"
#include "daemon/device/soft/transport.h"
#include "daemon/device/soft/ud_qp.h"

namespace rdmad::fuzz {

using device::QpState;

class Discard : public soft::PacketTx, public device::AsyncSink, public device::CompletionSink {
 public:
  size_t Send(const soft::Flow&, std::span<const soft::TxPacket> packets) noexcept override {
    return packets.size();
  }
  void OnAsyncEvent(const device::AsyncEvent&) noexcept override {}
  void OnCompletion(const device::Wc&) noexcept override { ++completions; }
  uint64_t completions = 0;
};

// What a live QP may be.
struct LiveInit {
  device::QpType type = device::QpType::kRc;
  soft::SoftSrq* srq = nullptr;
  uint64_t owner_token = 0;
};

// Memory and a region over all of it, with the right for everything.
struct LiveMemory {
  static constexpr uint64_t kIova = 0x7000'0000'0000;
  static constexpr size_t kBytes = 64 * 1024;

  explicit LiveMemory(soft::Transport& transport) : memory(kBytes) {
    auto made =
        soft::SoftMr::Create(transport, pd, {memory.data(), kBytes, kIova, device::kAccessAll});
    RD_CHECK(made.ok());
    mr = std::move(*made);
    mr->Activate(0);
  }
  ~LiveMemory() { mr->Deactivate(0); }
  LiveMemory(const LiveMemory&) = delete;
  LiveMemory& operator=(const LiveMemory&) = delete;

  std::vector<std::byte> memory;
  soft::SoftPd pd;
  std::unique_ptr<soft::SoftMr> mr;
};

inline soft::SourceLookup SourceOf(const IpAddress& own) {
  return [own](uint32_t, soft::SourceAddress* out) {
    out->address = own;
    return true;
  };
}

struct LiveQp : LiveMemory {
  static constexpr uint32_t kQkey = 0x1234;

  LiveQp(soft::Transport& transport, device::CompletionSink& sink, const IpAddress& own,
         uint32_t qpn, const LiveInit& live = {})
      : LiveMemory(transport), type(live.type), cq(65536, &sink) {
    soft::SoftQpInit init;
    init.qpn = qpn;
    init.pd = &pd;
    init.init.type = live.type;
    init.init.srq = live.srq;
    init.init.owner_token = live.owner_token;
    init.init.send_cq = init.init.recv_cq = &cq;
    init.cap = {16, 16, soft::kMaxSge, soft::kMaxSge, soft::kMaxInlineBytes};
    init.source = SourceOf(own);
    if (type == device::QpType::kUd) {
      Take(soft::UdQp::Create(transport, init));
    } else {
      Take(soft::SoftQp::Create(transport, init));
    }
    qp->Activate(0);
  }
  ~LiveQp() { qp->Deactivate(0); }

  // With what the type wants for it; what is not legal is refused.
  device::QpAttr AttrFor(QpState state, const IpAddress& peer = {}, uint32_t peer_qpn = 0) const {
    using enum device::QpAttrMask;
    const bool rc = type == device::QpType::kRc;
    const bool ud = type == device::QpType::kUd;
    device::QpAttr attr;
    attr.state = state;
    attr.mask = kQpAttrState;
    attr.qkey = kQkey;
    attr.access_flags = device::kAccessAll & ~device::kAccessMwBind;
    attr.av.dest = peer;
    attr.path_mtu = device::Mtu::k1024;
    attr.dest_qpn = peer_qpn;
    attr.rq_psn = attr.sq_psn = kPsn;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.timeout = 8;
    attr.retry_count = attr.rnr_retry = 7;
    if (state == QpState::kInit) {
      attr.mask |= kQpAttrPkeyIndex | kQpAttrPort | (ud ? kQpAttrQkey : kQpAttrAccessFlags);
    } else if (state == QpState::kRtr && !ud) {
      attr.mask |= kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn;
      if (rc) attr.mask |= kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
    } else if (state == QpState::kRts && qp->Query().state == QpState::kRtr) {
      attr.mask |= kQpAttrSqPsn;
      if (rc) {
        attr.mask |= kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic;
      }
    }
    return attr;
  }
  void Move(QpState state, soft::TimeNs now, const IpAddress& peer = {}, uint32_t peer_qpn = 0) {
    (void)qp->Modify(AttrFor(state, peer, peer_qpn), now);
  }
  // From whatever state, on the usual way until `last`.
  void To(QpState last, const IpAddress& peer, uint32_t peer_qpn, soft::TimeNs now) {
    for (const QpState state : {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts}) {
      Move(state, now, peer, peer_qpn);
      if (state == last) return;
    }
    Move(last, now);
  }
  void ToRts(const IpAddress& peer, uint32_t peer_qpn, soft::TimeNs now) {
    To(QpState::kRts, peer, peer_qpn, now);
  }

  static constexpr uint32_t kPsn = 0xfffff0;
  const device::QpType type;
  soft::SoftCq cq;
  std::unique_ptr<device::Qp> qp;
  soft::UdQp* datagram = nullptr;  // the same, if it is one

 private:
  void Take(absl::StatusOr<std::unique_ptr<soft::UdQp>> made) {
    RD_CHECK(made.ok());
    datagram = made->get();
    qp = std::move(*made);
  }
  void Take(absl::StatusOr<std::unique_ptr<soft::SoftQp>> made) {
    RD_CHECK(made.ok());
    qp = std::move(*made);
  }
};

}  // namespace rdmad::fuzz
