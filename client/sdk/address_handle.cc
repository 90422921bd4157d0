#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/protection_domain.h"
#include "client/sdk/qp_attr.h"
#include "client/sdk/status_macros.h"
#include "rdmad/verbs.h"

namespace rdmad {
namespace sdk {

// Thread: any. Owner: handles.
class AddressHandleState {
 public:
  AddressHandleState(std::shared_ptr<PdState> of_pd, const v1::CreateAhReply& reply) noexcept
      : slot_handle(reply.slot_handle()), pd_(std::move(of_pd)), handle_(reply.ah()) {}
  ~AddressHandleState() { Destroy().IgnoreError(); }
  AddressHandleState(const AddressHandleState&) = delete;
  AddressHandleState& operator=(const AddressHandleState&) = delete;

  absl::Status Destroy() {
    if (gone_.exchange(true)) return absl::OkStatus();
    v1::DestroyAhRequest request;
    request.set_ah(handle_);
    const absl::Status status = pd_->session()->Release(rpc::kDestroyAh, request);
    if (!status.ok()) gone_.store(false);
    return status;
  }

  const uint32_t slot_handle;

 private:
  const std::shared_ptr<PdState> pd_;
  const uint64_t handle_;
  std::atomic<bool> gone_{false};
};

namespace {

using RawGid = std::array<uint8_t, 16>;

constexpr size_t kIpv4Offset = 20;  // within a GRH's 40 bytes. Source: IBTA Annex A17, RoCEv2.
constexpr size_t kIpv4Bytes = 20;

bool IsMapped(const RawGid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.begin());
}

bool IsMulticast(const RawGid& gid) { return IsMapped(gid) ? (gid[12] & 0xf0) == 0xe0 : gid[0] == 0xff; }

bool IsLinkLocal(const RawGid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

// What a GRH says, whichever IP it is.
struct Header {
  RawGid source;
  RawGid destination;
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
};

// True if an IPv4 header, with a right checksum, ends at the GRH's end. Bytes of an IPv6 header look like one by accident
// only, and then not with the checksum. Source: RFC 791.
bool HoldsIpv4(const uint8_t* header) {
  if (header[0] != 0x45) return false;
  uint32_t sum = 0;
  for (size_t i = 0; i < kIpv4Bytes; i += 2) sum += static_cast<uint32_t>(header[i]) << 8 | header[i + 1];
  sum = (sum & 0xffff) + (sum >> 16);
  return sum == 0xffff;
}

RawGid MappedGid(const uint8_t* address) {
  RawGid gid = {};
  gid[10] = gid[11] = 0xff;
  std::copy_n(address, 4, gid.begin() + 12);
  return gid;
}

bool ParseGrh(std::span<const std::byte> grh, Header* out) {
  std::array<uint8_t, kGrhBytes> bytes;
  std::memcpy(bytes.data(), grh.data(), bytes.size());
  const bool says_v6 = bytes[0] >> 4 == 6;
  const uint8_t* ipv4 = &bytes[kIpv4Offset];
  // A device that leaves the checksum out still says 4 in the header, and nothing in front of it.
  if (HoldsIpv4(ipv4) || (!says_v6 && ipv4[0] >> 4 == 4)) {
    out->traffic_class = ipv4[1];
    out->source = MappedGid(ipv4 + 12);
    out->destination = MappedGid(ipv4 + 16);
    return true;
  }
  if (!says_v6) return false;
  out->traffic_class = static_cast<uint8_t>(bytes[0] << 4 | bytes[1] >> 4);
  out->flow_label = (bytes[1] & 0x0fu) << 16 | static_cast<uint32_t>(bytes[2]) << 8 | bytes[3];
  std::copy_n(&bytes[8], 16, out->source.begin());
  std::copy_n(&bytes[24], 16, out->destination.begin());
  return true;
}

bool IsSameKind(const RawGid& a, const RawGid& b) {
  return IsMapped(a) == IsMapped(b) && IsLinkLocal(a) == IsLinkLocal(b);
}

}  // namespace
}  // namespace sdk

absl::StatusOr<AddressHandleAttr> AddressHandleAttrFromWc(const DeviceInfo& device, const Wc& wc,
                                                          std::span<const std::byte> grh) {
  constexpr uint32_t kInfiniband = 1;
  const bool has_grh = (wc.flags & kWcGrh) != 0;
  if (wc.status != WcStatus::kSuccess || (!has_grh && device.link_layer != kInfiniband)) {
    return absl::InvalidArgumentError("init_ah_from_wc: the completion has no GRH");
  }
  AddressHandleAttr attr;
  attr.dlid = wc.slid;
  attr.service_level = wc.service_level;
  attr.src_path_bits = wc.dlid_path_bits;
  attr.is_global = has_grh;
  if (!has_grh) return attr;
  sdk::Header header;
  if (grh.size() < kGrhBytes || !sdk::ParseGrh(grh, &header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("init_ah_from_wc: grh_bytes=", grh.size(), ": need ", kGrhBytes, ", with an IP header in them"));
  }
  const bool is_multicast = sdk::IsMulticast(header.destination);
  const auto gid = std::find_if(device.gids.begin(), device.gids.end(), [&](const Gid& candidate) {
    return is_multicast ? sdk::IsSameKind(candidate.raw, header.source) : candidate.raw == header.destination;
  });
  if (gid == device.gids.end()) {
    return absl::NotFoundError(
        absl::StrCat("init_ah_from_wc: device=", device.name, " has none of the addresses that the datagram came to"));
  }
  attr.dest_gid = header.source;
  attr.sgid_index = gid->index;
  attr.flow_label = header.flow_label;
  attr.traffic_class = header.traffic_class;
  return attr;
}

AddressHandle::AddressHandle(std::shared_ptr<sdk::AddressHandleState> state) noexcept
    : state_(std::move(state)), slot_handle_(state_->slot_handle) {}

absl::StatusOr<AddressHandle> AddressHandle::Create(const ProtectionDomain& pd, const AddressHandleAttr& attr) {
  v1::CreateAhRequest request;
  request.set_pd(pd.state()->handle());
  *request.mutable_attr() = sdk::ToProto(attr);
  SDK_ASSIGN_OR_RETURN(const v1::CreateAhReply reply, pd.state()->session()->Call(sdk::rpc::kCreateAh, request));
  return AddressHandle(std::make_shared<sdk::AddressHandleState>(pd.state(), reply));
}

absl::StatusOr<AddressHandle> AddressHandle::CreateFromWc(const ProtectionDomain& pd, const Wc& wc,
                                                          std::span<const std::byte> grh) {
  SDK_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, sdk::QueryDevices(*pd.state()->session()));
  for (const DeviceInfo& device : devices) {
    if (device.index != pd.device_index()) continue;
    SDK_ASSIGN_OR_RETURN(const AddressHandleAttr attr, AddressHandleAttrFromWc(device, wc, grh));
    return Create(pd, attr);
  }
  return absl::NotFoundError(absl::StrCat("create_ah: device_index=", pd.device_index(), ": the device is gone"));
}

absl::Status AddressHandle::Destroy() { return state_->Destroy(); }

}  // namespace rdmad
