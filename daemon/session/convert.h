// Between protobuf messages and the daemon's own types. What comes from a client is checked here,
// field by field; nothing is truncated.
//
// Thread: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/socket_address.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/device.h"
#include "proto/rdmad/v1/cm.pb.h"
#include "proto/rdmad/v1/verbs.pb.h"

namespace rdmad::session {

// Errors of everything from a message: InvalidArgument that names the field, its value and what is
// allowed.
absl::StatusOr<SocketAddress> FromMessage(const v1::SocketAddress& message, const char* field);
absl::StatusOr<device::ConnParam> FromMessage(const v1::ConnParam& message);
// `bytes` are the 16 of a GID. It has no scope: a GID means something on one device only.
absl::StatusOr<IpAddress> GidFromMessage(const std::string& bytes, const char* field);
absl::StatusOr<device::AddressVector> FromMessage(const v1::AddressHandleAttr& message);
// Reads only the fields that `mask` names.
absl::StatusOr<device::QpAttr> FromMessage(const v1::QpAttr& message, uint32_t mask);
device::QpCap FromMessage(const v1::QpCap& message);
absl::StatusOr<device::QpType> QpTypeFromMessage(uint32_t value);
absl::StatusOr<device::QpState> QpStateFromMessage(uint32_t value);
absl::StatusOr<device::PortSpace> PortSpaceFromMessage(uint32_t value);

void ToMessage(const SocketAddress& address, v1::SocketAddress* message);  // unset stays family 0
void ToMessage(const device::QpAttr& attr, v1::QpAttr* message);
void ToMessage(const device::QpCap& cap, v1::QpCap* message);
void ToMessage(uint32_t index, const device::Device& device, v1::Device* message);

// "INIT", "RTS", ...
const char* QpStateName(device::QpState state) noexcept;

}  // namespace rdmad::session
