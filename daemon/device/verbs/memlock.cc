#include "daemon/device/verbs/memlock.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace rdmad::verbs {
namespace {

bool HasIpcLock() noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_IPC_LOCK / 32].effective & (1u << (CAP_IPC_LOCK % 32))) != 0;
}

}  // namespace

std::string MemlockAdvice() {
  rlimit limit{};
  if (HasIpcLock() || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return absl::StrCat("memlock: verbs devices may pin at most ", uint64_t{limit.rlim_cur},
                      " bytes (RLIMIT_MEMLOCK); pools beyond that fail with ENOMEM. Set "
                      "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`");
}

}  // namespace rdmad::verbs
