// A datagram queue pair of the soft device.
//
//   reset -> init -> rtr -> rts <-> sqd     rts -> sqe: by a send that fails; sqe -> rts: by modify
//   any -> reset: forgets                   any but reset -> err: flushes
//
// A send is one packet; it completes when it has been handed to the network, or copied to a QP of
// the same transport. Address handles are taken over by value with the post. A send that fails here
// (a bad handle, key or length) completes with its status, the sends behind it flush, and the state
// is kSqe; receives go on.
//
// A datagram is received if the QKey is the QP's. In front of the data go 40 bytes that say who
// sent it (wire/grh.h). Without a receive it is dropped and counted. One that is longer than the
// receive is dropped too, and the receive stays where it is; a receive of an SRQ cannot be put
// back, so there it completes with kLocLenErr and the QP is in error. (IBTA vol. 1, Responder Error
// Behavior, length errors: class D without, class E with an SRQ; the kernel's rxe does the same.)
//
// Files: ud_qp.cc states, ud_send.cc sends, ud_receive.cc receives.
// Thread: engine, but for creation, destruction and what device.h says. Owner: the control side.
// Source: IBTA vol. 1, Transport Layer, "Unreliable Datagram"; ibv_modify_qp(3).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/receive_queue.h"
#include "daemon/device/soft/send_queue.h"
#include "daemon/device/soft/sge_cursor.h"
#include "daemon/device/soft/soft_cq.h"
#include "daemon/device/soft/soft_srq.h"
#include "daemon/device/soft/transport.h"
#include "daemon/device/soft/transport_core.h"
#include "daemon/device/soft/transport_qp.h"

namespace rdmad::soft {

struct SoftQpInit;

// A message on its way into a QP, as the receiver sees it.
struct Datagram {
  const Flow& flow;
  uint32_t qkey;
  uint32_t src_qpn;
  uint32_t length_bytes;
  uint32_t imm_be;
  bool has_imm;
  bool solicited;
  const SgeList& source;  // of `length_bytes`, whose keys hold
};

class UdQp final : public device::Qp, public TransportQp {
 public:
  // Thread: control. Allocates everything the QP will ever need. `transport`, PD, CQs and SRQ
  // outlive the QP. Errors: those of CheckQpInit().
  static absl::StatusOr<std::unique_ptr<UdQp>> Create(Transport& transport, const SoftQpInit& init);
  // Thread: control, after Deactivate() or if never activated.
  ~UdQp() override;

  void Activate(TimeNs now) noexcept override;
  void Deactivate(TimeNs now) noexcept override;
  uint32_t qpn() const noexcept override { return qpn_; }
  const device::QpCap& cap() const noexcept override { return cap_; }
  [[nodiscard]] device::PostResult PostSend(const device::SendWr& wr, TimeNs now) noexcept override;
  [[nodiscard]] device::PostResult PostRecv(const device::RecvWr& wr, TimeNs now) noexcept override;
  // A QKey with its high bit set is kBadValue: those are the management's, and with the CM's an
  // application could speak in the host's name.
  [[nodiscard]] device::QpResult Modify(const device::QpAttr& attr, TimeNs now) noexcept override;
  device::QpAttr Query() const noexcept override;
  bool same_daemon() const noexcept override { return false; }

  // Also for packets to a multicast group that the QP is in.
  void OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs now) noexcept override;
  void OnTimer(TimeNs) noexcept override {}
  RunResult Run(uint32_t budget_bytes, TimeNs now) noexcept override;
  bool OnReceivePosted() noexcept override { return false; }
  void SetReceiveSource(device::ReceiveSource* source) noexcept override {
    receive_source_ = source;
  }
  void Receive(const Datagram& datagram) noexcept;

 private:
  // What a posted send took over from its address handle.
  struct Target {
    Flow flow;
    uint32_t qpn;
    uint32_t qkey;
  };

  UdQp(TransportCore& core, const SoftQpInit& init);

  // ud_qp.cc
  void MoveTo(device::QpState next) noexcept;
  void Complete(SoftCq& cq, device::Wc wc) noexcept;

  // ud_send.cc
  Target& TargetOf(uint32_t index) noexcept { return targets_[index & target_mask_]; }
  device::WcStatus Judge(const device::SendWr& wr, uint64_t length_bytes) const noexcept;
  void Enqueue(const device::SendWr& wr, uint8_t flags, uint32_t length_bytes,
               device::WcStatus verdict) noexcept;
  UdQp* LocalPeer(const Target& target) noexcept;
  SgeList SourceOf(uint32_t index) const noexcept {
    return {queue_.Sges(index), pd_id_, 0, queue_[index].is_inline()};
  }
  bool SendLocally(UdQp& peer, RunResult* result) noexcept;
  bool SendBatch(uint32_t budget_bytes, RunResult* result) noexcept;
  bool AddToBatch(uint32_t index) noexcept;
  void CompleteHead(device::WcStatus status) noexcept;
  void FailHead(device::WcStatus status) noexcept;
  void FlushSends() noexcept;
  void CheckDrained() noexcept;

  // ud_receive.cc
  bool TakeReceive(uint64_t bytes, ReceiveWqe* wqe) noexcept;
  void FailReceive(const ReceiveWqe& wqe, device::WcStatus status) noexcept;
  void FlushReceives() noexcept;

  TransportCore& core_;
  const uint32_t qpn_;
  const uint64_t pd_id_;
  const device::QpInit init_;
  const device::QpCap cap_;
  SoftCq& send_cq_;
  SoftCq& recv_cq_;
  SoftSrq* const srq_;  // null: receives are posted to the QP itself
  // Keeps what the creator wants kept.
  const std::shared_ptr<const void> lease_;

  device::QpAttr attr_;
  ActiveNode active_;
  bool activated_ = false;

  SendQueue queue_;
  const uint32_t target_mask_;
  const std::unique_ptr<Target[]> targets_;  // beside the queue's WRs
  wire::Psn next_psn_;
  uint32_t done_count_ = 0;  // Wc::wqe_count
  bool draining_ = false;

  // The last address that LocalPeer() looked up.
  IpAddress looked_up_;
  uint32_t looked_up_generation_ = 0;
  bool looked_up_is_local_ = false;

  ReceiveQueue receives_;  // unused with an SRQ
  device::ReceiveSource* receive_source_ = nullptr;
};

}  // namespace rdmad::soft
