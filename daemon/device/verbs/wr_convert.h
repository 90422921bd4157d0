// Work requests and completions between our terms and libibverbs'.
//
// Thread: any; pure.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "daemon/device/types.h"

namespace rdmad::verbs {

struct Operation {
  ibv_wr_opcode posted;
  device::WcOpcode completed;
};

// nullopt: QPs of this type do not do that. Source: ibv_post_send(3).
[[nodiscard]] std::optional<Operation> OperationOf(device::WrOpcode opcode,
                                                   device::QpType type) noexcept;
[[nodiscard]] unsigned int SendFlagsOf(const device::SendWr& wr, bool signal_all) noexcept;
[[nodiscard]] device::WcStatus StatusOf(ibv_wc_status status) noexcept;
// shm::kCqe..., of a receive that succeeded.
[[nodiscard]] uint8_t RecvFlagsOf(const ibv_wc& wc, device::QpType type) noexcept;
[[nodiscard]] ibv_qp_type TypeOf(device::QpType type) noexcept;

}  // namespace rdmad::verbs
