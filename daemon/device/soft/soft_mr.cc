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
  RD_ASSIGN_OR_RETURN(const uint32_t key, transport.mrs().keys().Reserve());
  return std::unique_ptr<SoftMr>(new SoftMr(transport.mrs(), {.host_addr = init.host_addr,
                                                              .length_bytes = init.length_bytes,
                                                              .iova = init.iova,
                                                              .pd_id = pd.id(),
                                                              .access = init.access,
                                                              .key = key}));
}

SoftMr::~SoftMr() {
  table_.keys().Release(entry_.key);
}

void SoftMr::Activate(device::TimeNs) noexcept {
  table_.Insert(entry_);
}

void SoftMr::Deactivate(device::TimeNs) noexcept {
  table_.Remove(entry_.key);
}

std::unique_ptr<device::EngineObject> SoftMr::PartIn(MrTable& table) const {
  class Part final : public device::EngineObject {
   public:
    Part(MrTable& in, const MrEntry& entry) : table_(in), entry_(entry) {}
    void Activate(device::TimeNs) noexcept override { table_.Insert(entry_); }
    void Deactivate(device::TimeNs) noexcept override { table_.Remove(entry_.key); }

   private:
    MrTable& table_;
    const MrEntry& entry_;
  };
  return std::make_unique<Part>(table, entry_);
}

}  // namespace rdmad::soft
