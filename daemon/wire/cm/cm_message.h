// Any CM message as one value: what the CM's state machines take and give.
//
//   MadHeader header;
//   CmMessage message;
//   if (ParseCmMessage(mad, &header, &message) == MadDropReason::kNone) std::visit(handlers,
//   message);
//
// Thread: any; nothing allocates.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "daemon/wire/cm/cm_drep.h"
#include "daemon/wire/cm/cm_dreq.h"
#include "daemon/wire/cm/cm_mra.h"
#include "daemon/wire/cm/cm_rej.h"
#include "daemon/wire/cm/cm_rep.h"
#include "daemon/wire/cm/cm_req.h"
#include "daemon/wire/cm/cm_rtu.h"
#include "daemon/wire/cm/cm_sidr.h"
#include "daemon/wire/cm/mad.h"

namespace rdmad::wire {

using CmMessage =
    std::variant<CmReq, CmMra, CmRej, CmRep, CmRtu, CmDreq, CmDrep, CmSidrReq, CmSidrRep>;

[[nodiscard]] CmAttribute AttributeOf(const CmMessage& message) noexcept;

// Parses a MAD. The header is filled whenever the size is right (a wrong class version, say, can be
// answered); the message only on kNone. LAP and APR (alternate paths) are kBadAttribute: RoCE peers
// do not send them.
[[nodiscard]] MadDropReason ParseCmMessage(std::span<const uint8_t> mad, MadHeader* header,
                                           CmMessage* message) noexcept;

// Writes all 256 bytes. The transaction id is the caller's; the attribute follows from the message.
void BuildCmMad(uint64_t transaction_id, const CmMessage& message, MadOut mad) noexcept;

}  // namespace rdmad::wire
