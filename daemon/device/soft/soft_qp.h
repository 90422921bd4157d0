// A queue pair of the soft device: the state machine of ibv_modify_qp around a requester and a
// responder.
//
//              reset -> init -> rtr -> rts <-> sqd      any -> reset (forgets);
//                                      |  ^     |       any but reset -> err (flushes)
//                                      v  |     |
//                                      sqe <----+       UC only, after a send that failed here
//
// Thread: engine, but for creation, destruction and what device.h says. Owner: the control side.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/cnp_sender.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/qp_context.h"
#include "daemon/device/soft/requester.h"
#include "daemon/device/soft/responder.h"
#include "daemon/device/soft/soft_pd.h"
#include "daemon/device/soft/source_address.h"
#include "daemon/device/soft/transport.h"
#include "daemon/device/soft/transport_qp.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

// In these states packets are executed.
constexpr bool ReceivesIn(device::QpState state) noexcept {
  return state >= device::QpState::kRtr && state <= device::QpState::kSqe;
}

struct SoftQpInit {
  uint32_t qpn = 0;  // 2..0xfffffe, free for the life of the QP
  const SoftPd* pd = nullptr;
  device::QpInit init;  // the CQs are SoftCq
  device::QpCap cap;    // what the device grants: at least what init.cap asks, within limits.h
  SourceLookup source;
};

// For QPs of every type: sizes, number and what a QP cannot be without.
// Errors: InvalidArgument (says which, asked and limit).
absl::Status CheckQpInit(const SoftQpInit& init);

class SoftQp final : public device::Qp, public TransportQp {
 public:
  // Thread: control. Allocates everything the QP will ever need. `transport`, PD, CQs and SRQ
  // outlive the QP. Errors: those of CheckQpInit(); Unimplemented (UD, which is UdQp).
  static absl::StatusOr<std::unique_ptr<SoftQp>> Create(Transport& transport,
                                                        const SoftQpInit& init);
  // Thread: control, after Deactivate() or if never activated.
  ~SoftQp() override;
  SoftQp(const SoftQp&) = delete;
  SoftQp& operator=(const SoftQp&) = delete;

  // Enters the QP in the transport's table.
  void Activate(TimeNs now) noexcept override;
  // Removes it from table, timers and active list; posted WRs are forgotten without completions.
  void Deactivate(TimeNs now) noexcept override;
  uint32_t qpn() const noexcept override { return context_.qpn; }
  const device::QpCap& cap() const noexcept override { return context_.cap; }
  [[nodiscard]] device::PostResult PostSend(const device::SendWr& wr, TimeNs now) noexcept override;
  [[nodiscard]] device::PostResult PostRecv(const device::RecvWr& wr, TimeNs now) noexcept override;
  [[nodiscard]] device::QpResult Modify(const device::QpAttr& attr, TimeNs now) noexcept override;
  device::QpAttr Query() const noexcept override;
  bool same_daemon() const noexcept override { return requester_.local().FindPeer() != nullptr; }

  // For the transport, and the QPs among themselves.
  void OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs now) noexcept override;
  void OnTimer(TimeNs now) noexcept override { requester_.OnTimer(now); }
  RunResult Run(uint32_t budget_bytes, TimeNs now) noexcept override;
  void SetReceiveSource(device::ReceiveSource* source) noexcept override {
    context_.receive_source = source;
  }
  bool OnReceivePosted() noexcept override;
  // Into kErr by the transport's own decision; flushes. Nothing happens if it is there already, or
  // reset.
  void EnterError(TimeNs now) noexcept;
  // The same for a send that failed on this side: kSqe on UC, where receiving goes on, else kErr.
  void EnterSendError(TimeNs now) noexcept;
  const QpContext& context() const noexcept { return context_; }
  Responder& responder() noexcept { return responder_; }
  const Responder& responder() const noexcept { return responder_; }
  Requester& requester() noexcept { return requester_; }

 private:
  SoftQp(TransportCore& core, const SoftQpInit& init);
  void Apply(const device::QpAttr& attr) noexcept;
  // Only what slows down when it is told of marks may have its packets marked.
  uint8_t MarkableBits() const noexcept {
    return context_.reliable() && context_.core.config.ecn ? kEct0 : kNotEct;
  }
  void NoteNotification() noexcept;
  void NoteMark(const wire::PacketView& packet, TimeNs now) noexcept;
  void MoveTo(device::QpState next) noexcept;

  const SourceLookup source_;
  QpContext context_;
  CnpSender cnp_;
  Requester requester_;
  Responder responder_;
  bool activated_ = false;
};

}  // namespace rdmad::soft
