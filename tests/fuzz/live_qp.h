// A QP of the soft device with memory of its own, for the targets that need live ones.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/transport.h"

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

struct LiveQp {
  static constexpr uint64_t kIova = 0x7000'0000'0000;
  static constexpr size_t kBytes = 64 * 1024;

  LiveQp(soft::Transport& transport, Discard& sink, const IpAddress& own, uint32_t qpn)
      : memory(kBytes), cq(65536, &sink) {
    auto made = soft::SoftMr::Create(
        transport, pd, {memory.data(), kBytes, kIova, device::kAccessAll & ~device::kAccessMwBind});
    RD_CHECK(made.ok());
    mr = std::move(*made);
    mr->Activate(0);
    soft::SoftQpInit init;
    init.qpn = qpn;
    init.pd = &pd;
    init.init.send_cq = init.init.recv_cq = &cq;
    init.cap = {16, 16, soft::kMaxSge, soft::kMaxSge, soft::kMaxInlineBytes};
    init.source = [own](uint32_t, soft::SourceAddress* out) {
      out->address = own;
      return true;
    };
    auto created = soft::SoftQp::Create(transport, init);
    RD_CHECK(created.ok());
    qp = std::move(*created);
    qp->Activate(0);
  }
  ~LiveQp() {
    qp->Deactivate(0);
    mr->Deactivate(0);
  }

  void Move(QpState state, soft::TimeNs now, const IpAddress& peer = {}, uint32_t peer_qpn = 0) {
    using enum device::QpAttrMask;
    device::QpAttr attr;
    attr.state = state;
    attr.mask = kQpAttrState;
    if (state == QpState::kInit) {
      attr.mask |= kQpAttrPkeyIndex | kQpAttrPort | kQpAttrAccessFlags;
      attr.access_flags = device::kAccessAll & ~device::kAccessMwBind;
    } else if (state == QpState::kRtr) {
      attr.mask |= kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
                   kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
      attr.av.dest = peer;
      attr.path_mtu = device::Mtu::k1024;
      attr.dest_qpn = peer_qpn;
      attr.rq_psn = kPsn;
      attr.max_dest_rd_atomic = 4;
      attr.min_rnr_timer = 1;
    } else if (state == QpState::kRts && qp->Query().state == QpState::kRtr) {
      attr.mask |=
          kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic;
      attr.sq_psn = kPsn;
      attr.timeout = 8;
      attr.retry_count = 7;
      attr.rnr_retry = 7;
      attr.max_rd_atomic = 4;
    }
    (void)qp->Modify(attr, now);
  }
  // From whatever state.
  void ToRts(const IpAddress& peer, uint32_t peer_qpn, soft::TimeNs now) {
    Move(QpState::kReset, now);
    Move(QpState::kInit, now);
    Move(QpState::kRtr, now, peer, peer_qpn);
    Move(QpState::kRts, now);
  }

  static constexpr uint32_t kPsn = 0xfffff0;
  std::vector<std::byte> memory;
  soft::SoftPd pd;
  soft::SoftCq cq;
  std::unique_ptr<soft::SoftMr> mr;
  std::unique_ptr<soft::SoftQp> qp;
};

}  // namespace rdmad::fuzz
