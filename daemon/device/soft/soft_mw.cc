#include "daemon/device/soft/soft_mw.h"

#include "daemon/base/status_macros.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<SoftMw>> SoftMw::Create(Transport& transport, const SoftPd& pd) {
  RD_ASSIGN_OR_RETURN(const uint32_t key, transport.mrs().ReserveKey());
  return std::unique_ptr<SoftMw>(new SoftMw(transport.mrs(), pd.id(), key));
}

SoftMw::~SoftMw() {
  table_.ReleaseKey(last_key_);
}

void SoftMw::Activate(device::TimeNs) noexcept {
  table_.InsertWindow(first_key_, pd_id_);
}

void SoftMw::Deactivate(device::TimeNs) noexcept {
  last_key_ = table_.RemoveWindow(first_key_);
}

}  // namespace rdmad::soft
