// Which moves ibv_modify_qp allows, and which attributes each one needs or may have: a table per QP
// type.
//
// Pure: looks at masks and values, changes nothing. Moving to kReset is legal from every state, to
// kErr from all but kReset (as the kernel has it); both take nothing but the state. kSqe is entered
// by the transport alone. Source: ibv_modify_qp(3); IBTA vol. 1, Software Transport Interface,
// "Modify Queue Pair".
#pragma once

#include <cstdint>

#include "daemon/device/types.h"

namespace rdmad::soft {

// `current` is the QP's state. Checks transition, mask and the range of each value that the mask
// names; what depends on the device (GID index, interface MTU) is left to the caller.
[[nodiscard]] device::QpResult CheckModify(device::QpType type, device::QpState current,
                                           const device::QpAttr& attr) noexcept;

// Whether the end of a drain is to be told: said with the step into kSqd, and kept while it is there.
// `own` are the QP's attributes before its state changes.
void TakeSqdNotify(const device::QpAttr& attr, device::QpAttr* own) noexcept;

}  // namespace rdmad::soft
