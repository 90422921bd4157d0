#include "daemon/device/soft/soft_ah.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rdmad::soft {

absl::StatusOr<std::unique_ptr<SoftAh>> SoftAh::Create(const SoftPd& pd,
                                                       const device::AddressVector& av,
                                                       SourceLookup source) {
  if (!av.is_global) {
    return absl::InvalidArgumentError(
        "create_ah: without a GRH there is no address; LIDs are InfiniBand's");
  }
  SourceAddress found;
  if (!source(av.sgid_index, &found)) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_ah: sgid_index=", av.sgid_index, " is not in use"));
  }
  if (av.dest.is_any()) {
    return absl::InvalidArgumentError("create_ah: the destination is the wildcard address");
  }
  if (av.dest.is_v4() != found.address.is_v4()) {
    return absl::InvalidArgumentError(absl::StrCat("create_ah: destination ", av.dest.ToString(),
                                                   " and source ", found.address.ToString(),
                                                   " are of two families"));
  }
  const Flow flow{
      .local = found.address,
      // A GID has no scope: such a peer is on the link of the address that we send from.
      .remote = av.dest.WithScope(found.address.scope_id()),
      // The lowest two bits are the network's (ECN): a datagram is never resent, so nothing would slow
      // down for a mark.
      .traffic_class = static_cast<uint8_t>(av.traffic_class & ~kEcnMask),
      // 0 means "not given", as in an address vector that nobody filled.
      .hop_limit = av.hop_limit != 0 ? av.hop_limit : Flow{}.hop_limit,
      .flow_label = av.flow_label & 0xfffff};
  return std::unique_ptr<SoftAh>(
      new SoftAh(pd.id(), flow, av.sgid_index, found, std::move(source)));
}

SoftAh::SoftAh(uint64_t pd_id, const Flow& flow, uint32_t sgid_index, const SourceAddress& found,
               SourceLookup source)
    : pd_id_(pd_id),
      flow_(flow),
      sgid_index_(sgid_index),
      found_(found),
      source_(std::move(source)) {}

uint32_t SoftAh::mtu_bytes() const noexcept {
  SourceAddress now;
  const bool same = source_(sgid_index_, &now) && now.address == found_.address;
  return device::MtuBytes(same ? now.max_mtu : found_.max_mtu);
}

}  // namespace rdmad::soft
