// Users and groups of this host, by name or number.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace rdmad::control {

// `name` may be a number, which need not exist. Empty: there is no such user, or group.
// Thread: control (getpwnam is not for many).
std::optional<uid_t> FindUser(const std::string& name);
std::optional<gid_t> FindGroup(const std::string& name);

}  // namespace rdmad::control
