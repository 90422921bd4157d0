#include "daemon/device/soft/soft_device.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/soft/gid_table.h"
#include "daemon/device/soft/limits.h"
#include "daemon/device/soft/link_mtu.h"
#include "daemon/device/soft/mr_table.h"
#include "daemon/device/soft/multicast_groups.h"
#include "daemon/device/soft/net_config.h"
#include "daemon/device/soft/soft_ah.h"
#include "daemon/device/soft/soft_context.h"
#include "daemon/device/soft/soft_cq.h"
#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_mw.h"
#include "daemon/device/soft/soft_pd.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/soft_srq.h"
#include "daemon/device/soft/transport_core.h"
#include "daemon/device/soft/ud_qp.h"
#include "daemon/device/soft/udp_socket.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::soft {

// Counts are of objects that exist.
struct SoftDevice::Shared {
  Shared(uint32_t interface_index, size_t engines) {
    for (size_t i = 0; i < engines; ++i) {
      groups.push_back(std::make_shared<MulticastGroups>(interface_index));
    }
  }

  GidTable gids;
  std::vector<std::shared_ptr<MulticastGroups>> groups;  // each engine is a member by itself
  uint32_t pds = 0;
  uint32_t cqs = 0;
  uint32_t qps = 0;
  uint32_t srqs = 0;
  uint32_t ahs = 0;
  std::set<uint32_t> qpns;
};

namespace {

constexpr uint32_t kMaxObjects =
    65536;  // of each kind: well within 32-bit handles and 24-bit QP numbers
constexpr uint64_t kMaxMrBytes = 1ull << 46;  // half of what a process can map
constexpr uint32_t kNoVendor = 0xffffff;      // an OUI that is nobody's
constexpr uint32_t kPortCaps = 1u << 16 | 1u << 26;  // IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS

// One object of a kind, from its creation to its destruction.
class Lease {
 public:
  // `owner` keeps `*count` alive.
  Lease(std::shared_ptr<void> owner, uint32_t* count) : owner_(std::move(owner)), count_(count) {
    ++*count_;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { --*count_; }

 private:
  const std::shared_ptr<void> owner_;
  uint32_t* const count_;
};

class LeasedPd final : public SoftPd {
 public:
  LeasedPd(std::shared_ptr<void> owner, uint32_t* count) : lease_(std::move(owner), count) {}

 private:
  const Lease lease_;
};

class LeasedCq final : public SoftCq {
 public:
  LeasedCq(uint32_t depth, device::CompletionSink* sink, std::shared_ptr<void> owner,
           uint32_t* count)
      : SoftCq(depth, sink), lease_(std::move(owner), count) {}

 private:
  const Lease lease_;
};

// A QP's number, its place in the count and among the device's QPs, and the GID index that it names.
class QpLease {
 public:
  QpLease(const SoftDeviceContext& context, uint32_t qpn, std::shared_ptr<void> owner,
          uint32_t* count, std::set<uint32_t>* qpns, GidTable* gids)
      : allocator_(context.qpns),
        clock_(context.clock),
        qpn_(qpn),
        lease_(std::move(owner), count),
        qpns_(qpns),
        gid_use_(*gids) {
    qpns_->insert(qpn_);
  }
  QpLease(const QpLease&) = delete;
  QpLease& operator=(const QpLease&) = delete;
  ~QpLease() {
    qpns_->erase(qpn_);
    allocator_->Free(qpn_, clock_());
  }

  // Engine thread.
  bool TakeGid(uint32_t index, SourceAddress* out) noexcept { return gid_use_.Take(index, out); }

 private:
  QpnAllocator* const allocator_;
  const std::function<device::TimeNs()> clock_;
  const uint32_t qpn_;
  const Lease lease_;  // keeps the two behind it
  std::set<uint32_t>* const qpns_;
  GidUse gid_use_;
};

// An AH's place in the count, and the GID index that it names.
struct AhLease {
  AhLease(std::shared_ptr<void> owner, uint32_t* count, GidTable* gids)
      : lease(std::move(owner), count), gid_use(*gids) {}

  const Lease lease;  // keeps the table
  GidUse gid_use;
  uint32_t route_mtu_bytes = 0;  // see KernelRoute
};

absl::Status CheckCount(const char* what, const SoftDeviceInfo& info, uint32_t count,
                        uint32_t limit) {
  if (count < limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      what, ": device ", info.name, " has no more: in_use=", count, " device_max=", limit));
}

device::DeviceAttr MakeAttr(const SoftDeviceContext& context, const SoftDeviceInfo& info) {
  device::DeviceAttr attr;
  attr.node_guid = info.node_guid;
  attr.sys_image_guid = info.node_guid;
  attr.vendor_id = kNoVendor;
  // Keys of partitions and datagrams that do not fit are counted, but for all ports together.
  attr.cap_flags = device::kCapCurrentStateMod | device::kCapPortActiveEvent |
                   device::kCapSysImageGuid | device::kCapRnrNak | device::kCapMemMgtExtensions |
                   device::kCapMemWindowType2B;
  attr.page_size_cap = ~uint64_t{4095};
  attr.max_qp = kMaxObjects;
  attr.max_qp_wr = kMaxQueueDepth;
  attr.max_sge = kMaxSge;
  attr.max_sge_rd = kMaxSge;
  attr.max_inline_bytes = kMaxInlineBytes;
  attr.max_cq = kMaxObjects;
  attr.max_cqe = shm::kMaxCqDepth;
  // Shared by all soft devices.
  attr.max_mr = context.paths.front()->transport().mrs().capacity() - 1;
  attr.max_mr_bytes = kMaxMrBytes;
  attr.max_pd = kMaxObjects;
  attr.max_srq = kMaxObjects;
  attr.max_srq_wr = kMaxQueueDepth;
  attr.max_srq_sge = kMaxSge;
  attr.max_mw = attr.max_mr;  // they share the keys
  attr.max_ah = kMaxObjects;
  attr.atomic_capability = 2;  // IBV_ATOMIC_GLOB: see remote_atomic.h
  attr.max_mcast_groups = MulticastGroups::kMaxGroups;
  attr.max_mcast_qps = MulticastGroups::kMaxQpsPerGroup;
  attr.max_total_mcast_qps = attr.max_mcast_groups * attr.max_mcast_qps;
  attr.max_msg_bytes = kMaxMessageBytes;
  attr.max_qp_rd_atom = kMaxRdAtomic;
  attr.max_res_rd_atom = kMaxRdAtomic * kMaxObjects;
  attr.max_qp_init_rd_atom = kMaxRdAtomic;
  attr.local_ca_ack_delay = kLocalAckDelay;
  attr.num_comp_vectors = static_cast<uint32_t>(context.paths.size());
  attr.max_mtu = kMaxMtu;
  return attr;
}

// The port is not active if not even the smallest fits.
device::Mtu ActiveMtu(const SoftLink& link) noexcept {
  return PathMtuOf(link.mtu_bytes).value_or(device::Mtu::k256);
}

}  // namespace

uint64_t MakeNodeGuid(const std::vector<uint8_t>& mac, const IpAddress& first_address) noexcept {
  uint64_t guid = 0;
  if (mac.size() == 6) {
    for (size_t i = 0; i < 3; ++i) guid = guid << 8 | mac[i];
    const bool none = guid == 0 && mac[3] == 0 && mac[4] == 0 && mac[5] == 0;
    if (!none) {
      guid = guid << 16 | 0xfffe;
      for (size_t i = 3; i < 6; ++i) guid = guid << 8 | mac[i];
      return guid ^ uint64_t { 2 } << 56;  // the universal/local bit is inverted in an EUI-64
    }
  }
  guid = 0xcbf29ce484222325;  // FNV-1a
  for (const uint8_t byte : first_address.bytes()) guid = (guid ^ byte) * 0x100000001b3;
  return guid | uint64_t{2} << 56;  // locally administered, and so never zero
}

SoftDevice::SoftDevice(const SoftDeviceContext& context, const SoftDeviceInfo& info)
    : context_(context),
      info_(info),
      attr_(MakeAttr(context, info)),
      contexts_(std::make_shared<char>()),
      shared_(std::make_shared<Shared>(info.link.index, context.paths.size())) {
  RD_CHECK(info.node_guid != 0, "a zero GUID crashes CM libraries");
  AppendUdpCounters(UdpCounters(), &past_counters_);  // all of them at 0
}

SoftDevice::~SoftDevice() = default;

absl::Status SoftDevice::AddPort(std::unique_ptr<UdpPortGroup> udp) {
  auto port = std::make_unique<SoftPort>(context_.paths, std::move(udp));
  if (!shared_->gids.Add({port->local(), ActiveMtu(info_.link)}).has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device ", info_.name, " has no place for address ", port->local().ToString(),
                     ": limit=", GidTable::kCapacity));
  }
  ports_.push_back(std::move(port));
  return absl::OkStatus();
}

SoftPort* SoftDevice::RemovePort(const IpAddress& address) {
  const auto found = std::find_if(ports_.begin(), ports_.end(), [&address](const auto& port) {
    return port->local() == address;
  });
  if (found == ports_.end()) return nullptr;
  if (const auto index = shared_->gids.Find(address)) shared_->gids.Remove(*index);
  leaving_.push_back(std::move(*found));
  ports_.erase(found);
  return leaving_.back().get();
}

void SoftDevice::ForgetPort(SoftPort* port) {
  const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                  [port](const auto& one) { return one.get() == port; });
  RD_CHECK(found != leaving_.end(), "the port was removed");
  AddCounters(*port, &past_counters_, &past_socket_drops_);
  leaving_.erase(found);
}

void SoftDevice::SetLink(const SoftLink& link) {
  const bool new_mtu = ActiveMtu(link) != ActiveMtu(info_.link);
  info_.link = link;
  if (!new_mtu) return;
  for (const device::GidEntry& gid : shared_->gids.List()) {
    shared_->gids.Update(gid.index, {gid.address, ActiveMtu(link)});
  }
}

std::vector<uint32_t> SoftDevice::Qpns() const {
  return {shared_->qpns.begin(), shared_->qpns.end()};
}

absl::Status SoftDevice::CheckPresent(const char* what) const {
  if (!removed_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, ": device ", info_.name, " is gone, with its interface"));
}

const std::string& SoftDevice::kind() const noexcept {
  static const std::string kKind = "soft";
  return kKind;
}

device::PortAttr SoftDevice::QueryPort() const {
  const SoftLink& link = info_.link;
  const bool up = !removed_ && link.running;
  device::PortAttr port;
  if (up) port.phys_state = device::PhysState::kLinkUp;
  if (up && PathMtuOf(link.mtu_bytes).has_value()) port.state = device::PortState::kActive;
  port.active_mtu = ActiveMtu(link);
  port.rate = link.rate;
  port.gid_table_length = GidTable::kCapacity;
  port.cap_flags = kPortCaps;
  port.max_vl_num = 1;
  return port;
}

std::vector<device::GidEntry> SoftDevice::Gids() const {
  std::vector<device::GidEntry> gids = shared_->gids.List();
  for (device::GidEntry& gid : gids) gid.interface_index = info_.link.index;
  return gids;
}

std::vector<device::CounterValue> SoftDevice::Counters() const {
  std::vector<device::CounterValue> sums = past_counters_;
  uint64_t socket_drops = past_socket_drops_;
  for (const auto* list : {&ports_, &leaving_}) {
    for (const auto& port : *list) AddCounters(*port, &sums, &socket_drops);
  }
  for (const auto& groups : shared_->groups) {
    AppendUdpCounters(groups->counters(), &sums);
    socket_drops += groups->SocketDropCount();
  }
  sums.push_back({"udp_rx_socket_full", "messages",
                  "dropped by the kernel: the socket's receive buffer was full", socket_drops});
  return sums;
}

void SoftDevice::AddCounters(const SoftPort& port, std::vector<device::CounterValue>* sums,
                             uint64_t* socket_drops) const {
  for (uint32_t engine = 0; engine < port.engines(); ++engine) {
    AppendUdpCounters(port.udp(engine).counters(), sums);
    *socket_drops += SocketDrops(port.udp(engine).fd());
  }
}

absl::StatusOr<std::unique_ptr<device::Context>> SoftDevice::Open(uint32_t engine) {
  RD_RETURN_IF_ERROR(CheckPresent("open"));
  return std::make_unique<SoftContext>(*this, engine, contexts_);
}

absl::StatusOr<std::unique_ptr<device::Pd>> SoftDevice::AllocPd() {
  RD_RETURN_IF_ERROR(CheckPresent("alloc_pd"));
  RD_RETURN_IF_ERROR(CheckCount("alloc_pd", info_, shared_->pds, attr_.max_pd));
  return std::make_unique<LeasedPd>(shared_, &shared_->pds);
}

absl::StatusOr<std::unique_ptr<device::Mr>> SoftDevice::RegisterMr(device::Pd& pd,
                                                                   const device::MrInit& init,
                                                                   uint32_t engine) {
  RD_RETURN_IF_ERROR(CheckPresent("reg_mr"));
  if (init.length_bytes > attr_.max_mr_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("reg_mr: length_bytes=", init.length_bytes,
                                                   " device_max=", attr_.max_mr_bytes));
  }
  return SoftMr::Create(context_.paths[engine]->transport(), static_cast<SoftPd&>(pd), init);
}

absl::StatusOr<std::unique_ptr<device::Mw>> SoftDevice::AllocMw(device::Pd& pd,
                                                                uint32_t engine) {
  return SoftMw::Create(context_.paths[engine]->transport(), static_cast<SoftPd&>(pd));
}

std::unique_ptr<device::EngineObject> SoftDevice::PartOf(const device::Mr& mr, uint32_t engine) {
  return static_cast<const SoftMr&>(mr).PartIn(context_.paths[engine]->transport().mrs());
}

std::unique_ptr<device::EngineObject> SoftDevice::PartOf(const device::Mw& mw, uint32_t engine) {
  return static_cast<const SoftMw&>(mw).PartIn(context_.paths[engine]->transport().mrs());
}

absl::StatusOr<std::unique_ptr<device::Cq>> SoftDevice::CreateCq(uint32_t depth,
                                                                 device::CompletionSink* sink) {
  RD_RETURN_IF_ERROR(CheckPresent("create_cq"));
  if (depth == 0 || depth > attr_.max_cqe) {
    return absl::InvalidArgumentError(
        absl::StrCat("create_cq: depth=", depth, " device_max=", attr_.max_cqe));
  }
  RD_RETURN_IF_ERROR(CheckCount("create_cq", info_, shared_->cqs, attr_.max_cq));
  return std::make_unique<LeasedCq>(depth, sink, shared_, &shared_->cqs);
}

absl::StatusOr<std::unique_ptr<device::Qp>> SoftDevice::CreateQp(device::Pd& pd,
                                                                 const device::QpInit& init,
                                                                 uint32_t engine) {
  RD_RETURN_IF_ERROR(CheckPresent("create_qp"));
  RD_RETURN_IF_ERROR(CheckCount("create_qp", info_, shared_->qps, attr_.max_qp));
  RD_ASSIGN_OR_RETURN(const uint32_t qpn,
                      context_.qpns->Allocate(engine, context_.clock()));
  // The lease goes with the look-up, which lives in the QP and dies with it.
  const auto lease = std::make_shared<QpLease>(context_, qpn, shared_, &shared_->qps,
                                               &shared_->qpns, &shared_->gids);
  SoftQpInit soft;
  soft.qpn = qpn;
  soft.pd = &static_cast<SoftPd&>(pd);
  soft.init = init;
  soft.cap = init.cap;
  soft.source = [lease](uint32_t sgid_index, SourceAddress* out) {
    return lease->TakeGid(sgid_index, out);
  };
  Transport& transport = context_.paths[engine]->transport();
  if (init.type == device::QpType::kUd) return UdQp::Create(transport, soft);
  return SoftQp::Create(transport, soft);
}

absl::StatusOr<std::unique_ptr<device::Srq>> SoftDevice::CreateSrq(device::Pd& pd,
                                                                   const device::SrqInit& init,
                                                                   uint32_t engine) {
  RD_RETURN_IF_ERROR(CheckPresent("create_srq"));
  RD_RETURN_IF_ERROR(CheckCount("create_srq", info_, shared_->srqs, attr_.max_srq));
  return SoftSrq::Create(context_.paths[engine]->transport().core().async,
                         static_cast<SoftPd&>(pd), init,
                         std::make_shared<const Lease>(shared_, &shared_->srqs));
}

absl::StatusOr<std::unique_ptr<device::Ah>> SoftDevice::CreateAh(device::Pd& pd,
                                                                 const device::AddressVector& av) {
  RD_RETURN_IF_ERROR(CheckPresent("create_ah"));
  RD_RETURN_IF_ERROR(CheckCount("create_ah", info_, shared_->ahs, attr_.max_ah));
  const auto lease = std::make_shared<AhLease>(shared_, &shared_->ahs, &shared_->gids);
  SourceAddress source;
  if (lease->gid_use.Take(av.sgid_index, &source) && !av.dest.is_multicast()) {
    const auto route = KernelRouteTo(av.dest.WithScope(source.address.scope_id()), source.address);
    if (route.ok()) lease->route_mtu_bytes = route->mtu_bytes;
  }
  return SoftAh::Create(static_cast<SoftPd&>(pd), av,
                        [shared = shared_, lease](uint32_t sgid_index, SourceAddress* out) {
                          if (!shared->gids.Lookup(sgid_index, out)) return false;
                          out->max_mtu = PathMtuOf(out->max_mtu, lease->route_mtu_bytes);
                          return true;
                        });
}

absl::StatusOr<std::unique_ptr<device::EngineObject>> SoftDevice::AttachMulticast(
    device::Qp& qp, const IpAddress& group, uint32_t engine) {
  RD_RETURN_IF_ERROR(CheckPresent("attach_mcast"));
  if (ports_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("attach_mcast: device ", info_.name, " has no address"));
  }
  return shared_->groups[engine]->Attach(*context_.paths[engine], qp, group,
                                         ports_.front()->udp().port());
}

}  // namespace rdmad::soft
