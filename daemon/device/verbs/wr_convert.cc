#include "daemon/device/verbs/wr_convert.h"

#include "proto/shm/completion_queue.h"
#include "proto/shm/work_queue.h"

namespace rdmad::verbs {

using device::WcOpcode;
using device::WcStatus;
using device::WrOpcode;

static_assert(static_cast<int>(WcStatus::kRetryExcErr) == IBV_WC_RETRY_EXC_ERR &&
              static_cast<int>(WcStatus::kGeneralErr) == IBV_WC_GENERAL_ERR &&
              static_cast<int>(WcOpcode::kRecvRdmaWithImm) == IBV_WC_RECV_RDMA_WITH_IMM);

std::optional<Operation> OperationOf(WrOpcode opcode, device::QpType type) noexcept {
  const bool rc = type == device::QpType::kRc;
  const bool connected = type != device::QpType::kUd;
  switch (opcode) {
    case WrOpcode::kSend:
      return Operation{IBV_WR_SEND, WcOpcode::kSend};
    case WrOpcode::kSendWithImm:
      return Operation{IBV_WR_SEND_WITH_IMM, WcOpcode::kSend};
    case WrOpcode::kSendWithInv:
      if (rc) return Operation{IBV_WR_SEND_WITH_INV, WcOpcode::kSend};
      break;
    case WrOpcode::kRdmaWrite:
      if (connected) return Operation{IBV_WR_RDMA_WRITE, WcOpcode::kRdmaWrite};
      break;
    case WrOpcode::kRdmaWriteWithImm:
      if (connected) return Operation{IBV_WR_RDMA_WRITE_WITH_IMM, WcOpcode::kRdmaWrite};
      break;
    case WrOpcode::kRdmaRead:
      if (rc) return Operation{IBV_WR_RDMA_READ, WcOpcode::kRdmaRead};
      break;
    case WrOpcode::kCompareSwap:
      if (rc) return Operation{IBV_WR_ATOMIC_CMP_AND_SWP, WcOpcode::kCompSwap};
      break;
    case WrOpcode::kFetchAdd:
      if (rc) return Operation{IBV_WR_ATOMIC_FETCH_AND_ADD, WcOpcode::kFetchAdd};
      break;
    case WrOpcode::kLocalInv:
      if (connected) return Operation{IBV_WR_LOCAL_INV, WcOpcode::kLocalInv};
      break;
    case WrOpcode::kBindMw:
      if (connected) return Operation{IBV_WR_BIND_MW, WcOpcode::kBindMw};
      break;
  }
  return std::nullopt;
}

unsigned int SendFlagsOf(const device::SendWr& wr, bool signal_all) noexcept {
  unsigned int flags = 0;
  if (signal_all || (wr.flags & shm::kWorkSignaled) != 0) flags |= IBV_SEND_SIGNALED;
  if ((wr.flags & shm::kWorkSolicited) != 0) flags |= IBV_SEND_SOLICITED;
  if ((wr.flags & shm::kWorkFence) != 0) flags |= IBV_SEND_FENCE;
  return flags;
}

WcStatus StatusOf(ibv_wc_status status) noexcept {
  return status <= IBV_WC_GENERAL_ERR ? static_cast<WcStatus>(status) : WcStatus::kGeneralErr;
}

uint8_t RecvFlagsOf(const ibv_wc& wc, device::QpType type) noexcept {
  // Of rxe it is the kernel's own bit for an invalidation, which is this one here (Linux 6.1).
  // Nothing else sets it for a connected QP.
  unsigned int invalidation = IBV_WC_WITH_INV;
  if (type == device::QpType::kRc) invalidation |= IBV_WC_IP_CSUM_OK;
  uint8_t flags = 0;
  if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) flags |= shm::kCqeWithImm;
  if ((wc.wc_flags & invalidation) != 0) flags |= shm::kCqeWithInv;
  // Drivers set it for connected QPs too, where nothing stands before the payload.
  if (type == device::QpType::kUd && (wc.wc_flags & IBV_WC_GRH) != 0) flags |= shm::kCqeGrh;
  return flags;
}

ibv_qp_type TypeOf(device::QpType type) noexcept {
  switch (type) {
    case device::QpType::kRc:
      return IBV_QPT_RC;
    case device::QpType::kUc:
      return IBV_QPT_UC;
    case device::QpType::kUd:
      return IBV_QPT_UD;
  }
  return IBV_QPT_RC;
}

}  // namespace rdmad::verbs
