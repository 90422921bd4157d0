// WRs that send nothing: binding a memory window, and invalidating one of this side.
#include "daemon/device/soft/requester.h"

namespace rdmad::soft {

using device::QpState;
using device::WcStatus;
using device::WrOpcode;

// The WR at `next_`, in its turn. False if it has to wait for those before it, or has failed.
bool Requester::RunLocalOperation(TimeNs now, RunResult* result) noexcept {
  if (next_.index != queue_.head() || qp_.state() != QpState::kRts) return false;
  const SendWqe& wqe = queue_[next_.index];
  MrTable& mrs = qp_.core.mrs;
  WcStatus failure = WcStatus::kSuccess;
  if (wqe.opcode == WrOpcode::kBindMw) {
    const WindowBind bind{.key = wqe.rkey,
                          .lkey = wqe.bind_lkey,
                          .iova = wqe.remote_addr,
                          .length_bytes = wqe.compare_add,
                          .access = wqe.swap};
    if (!mrs.BindWindow(bind, qp_.pd_id, qp_.key_scope)) failure = WcStatus::kMwBindErr;
  } else if (!mrs.InvalidateWindow(wqe.imm_be, qp_.key_scope)) {
    failure = WcStatus::kLocQpOpErr;
  }
  result->spent_bytes += kPacketOverheadBytes;
  ++result->work;
  if (failure != WcStatus::kSuccess) {
    FailHead(failure, now);
    return false;
  }
  AdvancePosition(next_, wqe, 0);
  CompleteHead(WcStatus::kSuccess);
  return true;
}

}  // namespace rdmad::soft
