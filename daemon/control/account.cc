#include "daemon/control/account.h"

#include <grp.h>
#include <pwd.h>

#include "absl/strings/numbers.h"

namespace rdmad::control {

std::optional<uid_t> FindUser(const std::string& name) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return number;
  const passwd* entry = getpwnam(name.c_str());
  if (entry == nullptr) return std::nullopt;
  return entry->pw_uid;
}

std::optional<gid_t> FindGroup(const std::string& name) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return number;
  const group* entry = getgrnam(name.c_str());
  if (entry == nullptr) return std::nullopt;
  return entry->gr_gid;
}

}  // namespace rdmad::control
