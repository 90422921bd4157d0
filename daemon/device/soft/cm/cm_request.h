// The REQ: what ours says, and what of a peer's is acceptable.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/cm_facts.h"
#include "daemon/device/soft/cm/cm_options.h"
#include "daemon/wire/cm/cm_rej.h"
#include "daemon/wire/cm/cm_req.h"
#include "daemon/wire/cm/ip_cm.h"

namespace rdmad::soft {

// The REQ of a connection from `local` to `peer`; `param.private_data` is at most
// wire::kReqAppBytes.
[[nodiscard]] wire::CmReq MakeReq(const CmFacts& facts, const device::ConnParam& param,
                                  device::PortSpace space, const SocketAddress& local,
                                  const SocketAddress& peer, const CmOptions& options);

// The parts of a peer's REQ that say what it wants, checked against where it came from.
struct CmRequest {
  device::PortSpace space = device::PortSpace::kTcp;
  SocketAddress local;  // as the peer named us
  SocketAddress peer;
};

// Fills `request`, or returns why the REQ must be rejected. `flow` is that of the packet. Does not
// look for a listener.
[[nodiscard]] std::optional<wire::RejReason> ReadReq(const wire::CmReq& req, const Flow& flow,
                                                     CmRequest* request);

// The passive side's facts after a REQ, except ids, QPN and PSN of its own.
void TakeReq(const wire::CmReq& req, const CmOptions& options, CmFacts* facts);

// What the REQ offers, as the application on the passive side sees it.
[[nodiscard]] device::ConnParam ParamOf(const wire::CmReq& req);

}  // namespace rdmad::soft
