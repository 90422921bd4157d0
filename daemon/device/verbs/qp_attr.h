// QP attributes between our terms and libibverbs'. The numbers are the same; the structures are
// not. For us a device has one port, number 1; `port` is the number that the hardware knows it by.
//
// Thread: any; pure.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "daemon/device/types.h"

namespace rdmad::verbs {

[[nodiscard]] device::AddressVector FromIbv(const ibv_ah_attr& ah) noexcept;
[[nodiscard]] ibv_ah_attr ToIbv(const device::AddressVector& av, uint8_t port) noexcept;

// What `mask` (ibv_qp_attr_mask) names; bits that we do not know are left out.
[[nodiscard]] device::QpAttr FromIbv(const ibv_qp_attr& attr, uint32_t mask) noexcept;
// What attr.mask names. `*mask` becomes the ibv_qp_attr_mask.
void ToIbv(const device::QpAttr& attr, uint8_t port, ibv_qp_attr* out, int* mask) noexcept;

}  // namespace rdmad::verbs
