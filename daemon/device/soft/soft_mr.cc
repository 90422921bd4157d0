#include "daemon/device/soft/soft_mr.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<SoftMr>> SoftMr::Create(Transport& transport, const SoftPd& pd,
                                                       const device::MrInit& init) {
  if (init.length_bytes == 0 || init.host_addr == nullptr) {
    return absl::InvalidArgumentError("register_mr: the region is empty");
  }
  const uint64_t last = init.length_bytes - 1;
  if (init.iova + last < init.iova || reinterpret_cast<uintptr_t>(init.host_addr) + last < last) {
    return absl::InvalidArgumentError(absl::StrCat(
        "register_mr: the region wraps, length_bytes=", init.length_bytes, " iova=", init.iova));
  }
  if ((init.access & ~device::kAccessAll) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "register_mr: unknown access bits, access=", init.access, " known=", device::kAccessAll));
  }
  constexpr uint32_t kWrites = device::kAccessRemoteWrite | device::kAccessRemoteAtomic;
  if ((init.access & kWrites) != 0 && (init.access & device::kAccessLocalWrite) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "register_mr: remote write and remote atomic need local write, access=", init.access));
  }
  RD_ASSIGN_OR_RETURN(const uint32_t key, transport.mrs().ReserveKey());
  return std::unique_ptr<SoftMr>(new SoftMr(transport.mrs(), {.host_addr = init.host_addr,
                                                              .length_bytes = init.length_bytes,
                                                              .iova = init.iova,
                                                              .pd_id = pd.id(),
                                                              .access = init.access,
                                                              .key = key}));
}

SoftMr::~SoftMr() {
  table_.ReleaseKey(entry_.key);
}

void SoftMr::Activate(device::TimeNs) noexcept {
  table_.Insert(entry_);
}

void SoftMr::Deactivate(device::TimeNs) noexcept {
  table_.Remove(entry_.key);
}

}  // namespace rdmad::soft
