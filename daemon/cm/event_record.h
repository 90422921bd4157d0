// From the device's words to the records that a client reads from its event channel.
#pragma once

#include <cstdint>

#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"
#include "proto/shm/event.h"

namespace rdmad::cm {

// An unset address (:: and port 0) has family 0.
[[nodiscard]] shm::SocketAddress ToShm(const SocketAddress& address) noexcept;
[[nodiscard]] SocketAddress FromShm(const shm::SocketAddress& address) noexcept;

// What an event says by itself. Handles, generation, device and addresses are the caller's to fill
// in.
[[nodiscard]] shm::CmEvent ToRecord(const device::CmEvent& event) noexcept;

}  // namespace rdmad::cm
