// The SIDR_REQ: what ours says, and what of a peer's is acceptable.
#pragma once

#include <optional>
#include <span>

#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/cm_request.h"
#include "daemon/device/soft/cm/sidr_exchange.h"
#include "daemon/wire/cm/cm_sidr.h"

namespace rdmad::soft {

// The question of `local` for the QP of `peer`; `private_data` is at most wire::kSidrReqAppBytes.
[[nodiscard]] wire::CmSidrReq MakeSidrReq(const SidrFacts& facts,
                                          std::span<const uint8_t> private_data,
                                          const SocketAddress& local, const SocketAddress& peer);

// Fills `request`, or returns the status with which the REQ must be answered. `flow` is that of the
// packet. Does not look for a listener.
[[nodiscard]] std::optional<wire::SidrStatus> ReadSidrReq(const wire::CmSidrReq& req,
                                                          const Flow& flow, CmRequest* request);

// What the REQ carries for the application on the passive side. It names no QP.
[[nodiscard]] device::ConnParam ParamOf(const wire::CmSidrReq& req);

}  // namespace rdmad::soft
