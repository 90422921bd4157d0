#include "daemon/device/soft/soft_mw.h"

#include "daemon/base/status_macros.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<SoftMw>> SoftMw::Create(Transport& transport, const SoftPd& pd) {
  RD_ASSIGN_OR_RETURN(const uint32_t key, transport.mrs().keys().Reserve());
  return std::unique_ptr<SoftMw>(new SoftMw(transport.mrs(), pd.id(), key));
}

SoftMw::SoftMw(MrTable& table, uint64_t pd_id, uint32_t key)
    : keys_(table.keys()), pd_id_(pd_id), first_key_(key), part_(table, *this) {
  keys_.MakeWindow(key);
}

SoftMw::~SoftMw() {
  keys_.Release(keys_.LastKeyOf(first_key_));
}

void SoftMw::Part::Activate(device::TimeNs) noexcept {
  table_.InsertWindow(window_.first_key_, window_.pd_id_);
}

void SoftMw::Part::Deactivate(device::TimeNs) noexcept {
  table_.RemoveWindow(window_.first_key_);
}

}  // namespace rdmad::soft
