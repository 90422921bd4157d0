// What the requester and the responder of one QP share: who it is, its attributes, and its ways to
// the outside.
//
// Thread: engine, but for construction. Owner: the SoftQp.
#pragma once

#include <cstdint>

#include "daemon/device/device.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/soft_cq.h"
#include "daemon/device/soft/soft_srq.h"
#include "daemon/device/soft/transport_core.h"

namespace rdmad::soft {

struct QpContext {
  SoftQp& self;
  TransportCore& core;
  const uint32_t qpn;
  const uint64_t pd_id;
  const device::QpInit init;
  const device::QpCap cap;
  SoftCq* const send_cq;
  SoftCq* const recv_cq;
  SoftSrq* const srq;  // null: receives are posted to the QP itself
  const uint64_t key_scope;  // of the windows that are bound to this QP (mr_table.h)

  device::QpAttr attr;     // attr.state is the QP's state; PSNs as they were set
  Flow flow;               // from kRtr on
  uint32_t mtu_bytes = 0;  // from kRtr on
  Timer timer;  // the requester's
  ActiveNode active;
  ActiveNode srq_waiter;
  device::ReceiveSource* receive_source = nullptr;

  device::QpState state() const noexcept { return attr.state; }
  bool reliable() const noexcept { return init.type == device::QpType::kRc; }
  // There is something to do in the next turn.
  void Wake() noexcept { core.active.Push(active); }

  void Raise(device::AsyncEventType type) noexcept {
    core.async->OnAsyncEvent({type, init.owner_token, qpn});
  }

  void Complete(SoftCq& cq, device::Wc wc) noexcept {
    wc.qpn = qpn;
    wc.qp_cookie = init.cookie;
    Count(core.counters.completions);
    if (wc.status != device::WcStatus::kSuccess && wc.status != device::WcStatus::kWrFlushErr) {
      Count(core.counters.completion_errors);
    }
    cq.Push(wc);
  }
};

}  // namespace rdmad::soft
