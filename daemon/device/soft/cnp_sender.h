// The receiving side of RoCEv2 congestion management: tells the sender of packets that a router has
// marked, by a Congestion Notification Packet (CNP), at most one per interval for one QP however
// many marks there are. What the sender makes of it: Requester::OnCongestion().
//
// Thread: engine, but for construction. Owner: the SoftQp. Source: RoCEv2 Annex A17, "RoCEv2
// Congestion Management" and "CNP".
#pragma once

#include "daemon/device/soft/qp_context.h"
#include "daemon/device/soft/run_result.h"
#include "daemon/device/soft/send_window.h"
#include "daemon/wire/opcode.h"

namespace rdmad::soft {

// A round trip of the networks that mark packets; what NICs do.
inline constexpr TimeNs kCnpIntervalNs = 50'000;

class CnpSender {
 public:
  explicit CnpSender(QpContext& qp) noexcept : qp_(qp) {}

  void Reset() noexcept {
    due_ = false;
    quiet_until_ = 0;
  }
  // A packet of the peer's came marked. The CNP goes out in the QP's next turn.
  void OnMarked(TimeNs now) noexcept;
  // Sends what is due. False if the network does not take it now.
  bool Run(RunResult* result) noexcept;

 private:
  QpContext& qp_;
  bool due_ = false;
  TimeNs quiet_until_ = 0;
};

}  // namespace rdmad::soft
