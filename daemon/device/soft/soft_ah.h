// An address handle of the soft device: where a datagram goes, checked once and taken over by value
// with each post.
//
// Thread: control creates and destroys it; the engine reads it. Owner: the control side.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/soft_pd.h"
#include "daemon/device/soft/source_address.h"

namespace rdmad::soft {

class SoftAh final : public device::Ah {
 public:
  // Errors: InvalidArgument (an sgid_index that is not in use, no destination, or one of another
  // family than the source).
  static absl::StatusOr<std::unique_ptr<SoftAh>> Create(const SoftPd& pd,
                                                        const device::AddressVector& av,
                                                        SourceLookup source);
  void Activate(TimeNs) noexcept override {}
  void Deactivate(TimeNs) noexcept override {}

  uint64_t pd_id() const noexcept { return pd_id_; }
  const Flow& flow() const noexcept { return flow_; }
  // The largest datagram, as of now: an interface's MTU may change under a handle.
  uint32_t mtu_bytes() const noexcept;

 private:
  SoftAh(uint64_t pd_id, const Flow& flow, uint32_t sgid_index, const SourceAddress& found,
         SourceLookup source);

  const uint64_t pd_id_;
  const Flow flow_;
  const uint32_t sgid_index_;
  const SourceAddress found_;  // at creation
  const SourceLookup source_;
};

}  // namespace rdmad::soft
