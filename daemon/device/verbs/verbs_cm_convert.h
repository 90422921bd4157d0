// Between rdma_cma.h's words and ours: parameters, events, QP attributes, errors. Pure.
//
// Thread: any.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/types.h"

namespace rdmad::verbs {

// What the kernel means by EINVAL depends on what was asked of it.
enum class Einval : uint8_t { kArgument, kState };

// The status of a failed call, with codes as connection_manager.h has them. `what` names the call
// and its addresses.
[[nodiscard]] absl::Status CmStatus(int error, Einval einval, const std::string& what);

// `param` outlives the result, which points to its private data (at most 255 bytes).
[[nodiscard]] rdma_conn_param ToRdma(const device::ConnParam& param);
[[nodiscard]] device::ConnParam FromRdma(const rdma_conn_param& param);
[[nodiscard]] device::ConnParam FromRdma(const rdma_ud_param& param);

// A later kernel may report what is no value of the enum, which must not be read as one.
[[nodiscard]] uint32_t EventType(const rdma_cm_event& event) noexcept;

// Everything but `new_endpoint` and `path_mtu`, and without scopes; nothing of it refers to
// `event`. nullopt: an event of a later kernel. `datagram`: the id is of port space UDP, whose
// messages carry other parameters.
[[nodiscard]] std::optional<device::CmEvent> FromRdma(const rdma_cm_event& event, bool datagram);

// What rdma_init_qp_attr() computed. It names the port in the address vector only, and a GID has no
// scope: that of a link-local peer is added.
[[nodiscard]] device::QpAttr FromRdma(const ibv_qp_attr& attr, int mask, uint32_t peer_scope_id);

// Unset unless it is IPv4 or IPv6. `address` points into a sockaddr_storage.
[[nodiscard]] SocketAddress FromRdma(const sockaddr* address);

}  // namespace rdmad::verbs
