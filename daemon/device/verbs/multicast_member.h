// This host as a member of a multicast group on one interface (IGMP, MLD), by a socket that nobody
// reads.
//
// Thread: any.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::verbs {

// A member while the descriptor is open. Errors: InvalidArgument (no multicast address); those of
// the kernel.
absl::StatusOr<UniqueFd> JoinOnInterface(const IpAddress& group, uint32_t ifindex);

}  // namespace rdmad::verbs
