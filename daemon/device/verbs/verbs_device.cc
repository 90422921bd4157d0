#include "daemon/device/verbs/verbs_device.h"

#include <endian.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/device/verbs/hw_counters.h"
#include "daemon/device/verbs/non_blocking.h"
#include "daemon/device/verbs/verbs_context.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/work_queue.h"

namespace rdmad::verbs {
namespace {

constexpr size_t kMaxGids = 256;

uint32_t Positive(int value) {
  return static_cast<uint32_t>(std::max(value, 0));
}

device::Mtu MtuOf(ibv_mtu mtu) {
  return static_cast<device::Mtu>(std::clamp<int>(mtu, IBV_MTU_256, IBV_MTU_4096));
}

device::DeviceAttr AttrOf(const ibv_device_attr& hw, const ibv_port_attr& port, size_t engines) {
  device::DeviceAttr attr;
  attr.node_guid = be64toh(hw.node_guid);
  attr.sys_image_guid = be64toh(hw.sys_image_guid);
  attr.fw_ver.assign(hw.fw_ver, ::strnlen(hw.fw_ver, sizeof(hw.fw_ver)));
  attr.vendor_id = hw.vendor_id;
  attr.vendor_part_id = hw.vendor_part_id;
  attr.hw_ver = hw.hw_ver;
  attr.cap_flags = hw.device_cap_flags & device::kCapAll;
  attr.page_size_cap = hw.page_size_cap;
  attr.max_qp = Positive(hw.max_qp);
  // What a ring in front of the device can hold.
  attr.max_qp_wr = std::min(Positive(hw.max_qp_wr), shm::kMaxQueueDepth);
  attr.max_sge = std::min(Positive(hw.max_sge), shm::kMaxSge);
  attr.max_sge_rd = std::min(Positive(hw.max_sge_rd), shm::kMaxSge);
  // No driver says; a QP says at its creation what it granted.
  attr.max_inline_bytes = shm::kMaxInlineBytes;
  attr.max_cq = Positive(hw.max_cq);
  attr.max_cqe = std::min(Positive(hw.max_cqe), shm::kMaxCqDepth);
  attr.max_mr = Positive(hw.max_mr);
  attr.max_mr_bytes = hw.max_mr_size;
  attr.max_pd = Positive(hw.max_pd);
  attr.max_srq = Positive(hw.max_srq);
  attr.max_srq_wr = std::min(Positive(hw.max_srq_wr), shm::kMaxQueueDepth);
  attr.max_srq_sge = std::min(Positive(hw.max_srq_sge), shm::kMaxSge);
  attr.max_ah = Positive(hw.max_ah);
  constexpr unsigned int kType2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  attr.max_mw = (hw.device_cap_flags & kType2) != 0 ? Positive(hw.max_mw) : 0;
  attr.max_mcast_groups = Positive(hw.max_mcast_grp);
  attr.max_mcast_qps = Positive(hw.max_mcast_qp_attach);
  attr.max_total_mcast_qps = Positive(hw.max_total_mcast_qp_attach);
  attr.atomic_capability = static_cast<uint32_t>(hw.atomic_cap);
  attr.max_msg_bytes = port.max_msg_sz;
  attr.max_qp_rd_atom = Positive(hw.max_qp_rd_atom);
  attr.max_res_rd_atom = Positive(hw.max_res_rd_atom);
  attr.max_qp_init_rd_atom = Positive(hw.max_qp_init_rd_atom);
  attr.max_pkeys = hw.max_pkeys;
  attr.local_ca_ack_delay = hw.local_ca_ack_delay;
  attr.num_comp_vectors = static_cast<uint32_t>(engines);
  attr.max_mtu = MtuOf(port.max_mtu);
  return attr;
}

device::PortAttr PortOf(const ibv_port_attr& hw) {
  device::PortAttr port;
  port.state = static_cast<device::PortState>(hw.state);
  port.active_mtu = MtuOf(hw.active_mtu);
  port.phys_state = static_cast<device::PhysState>(hw.phys_state);
  port.link_layer = static_cast<device::LinkLayer>(hw.link_layer);
  port.rate = {hw.active_width, hw.active_speed};
  port.gid_table_length = Positive(hw.gid_tbl_len);
  port.pkey_table_length = hw.pkey_tbl_len;
  port.cap_flags = hw.port_cap_flags;
  port.cap_flags2 = hw.port_cap_flags2;
  port.bad_pkey_count = hw.bad_pkey_cntr;
  port.qkey_violation_count = hw.qkey_viol_cntr;
  port.max_vl_num = hw.max_vl_num;
  port.flags = hw.flags;
  if (port.link_layer != device::LinkLayer::kInfiniband) return port;
  port.lid = hw.lid;
  port.sm_lid = hw.sm_lid;
  port.lmc = hw.lmc;
  port.sm_sl = hw.sm_sl;
  port.subnet_timeout = hw.subnet_timeout;
  port.init_type_reply = hw.init_type_reply;
  return port;
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsDevice>> VerbsDevice::Open(
    ibv_device* device, uint8_t number, std::vector<VerbsDataPath*> paths) {
  const std::string name = PortName(ibv_get_device_name(device), number);
  ibv_context* const hw = ibv_open_device(device);
  if (hw == nullptr) return VerbsError("open_device", name, errno);
  ibv_device_attr attr{};
  ibv_port_attr port{};
  int error = ibv_query_device(hw, &attr);
  if (error == 0) error = ibv_query_port(hw, number, &port);
  if (error == 0 && !SetNonBlocking(hw->async_fd)) error = errno;
  if (error != 0) {
    ibv_close_device(hw);
    return VerbsError("query_device", name, error);
  }
  std::unique_ptr<VerbsDevice> opened(
      new VerbsDevice(device, hw, number, AttrOf(attr, port, paths.size()), paths));
  opened->Refresh();
  return opened;
}

VerbsDevice::VerbsDevice(ibv_device* device, ibv_context* hw, uint8_t port,
                         const device::DeviceAttr& attr, std::vector<VerbsDataPath*> paths)
    : device_(device),
      hw_(hw),
      paths_(std::move(paths)),
      number_(port),
      ibv_name_(ibv_get_device_name(device)),
      name_(PortName(ibv_name_, port)),
      attr_(attr) {}

VerbsDevice::~VerbsDevice() {
  SetRemoved();
}

const std::string& VerbsDevice::kind() const noexcept {
  static const std::string kKind = "verbs";
  return kKind;
}

void VerbsDevice::RefreshPort() {
  ibv_port_attr port{};
  if (ibv_query_port(hw_, number_, &port) == 0) port_ = PortOf(port);
}

void VerbsDevice::Refresh() {
  if (hw_ == nullptr) return;
  RefreshPort();
  RefreshPkeys();
  ibv_gid_entry entries[kMaxGids];
  const ssize_t count = ibv_query_gid_table(hw_, entries, kMaxGids, 0);
  if (count < 0) return;
  gids_.clear();
  for (const ibv_gid_entry& entry : std::span(entries, static_cast<size_t>(count))) {
    if (entry.port_num != number_ || entry.gid_type == IBV_GID_TYPE_ROCE_V1) continue;
    Gid gid;
    std::memcpy(gid.data(), entry.gid.raw, gid.size());
    gids_.push_back({entry.gid_index, IpAddress::FromGid(gid, entry.ndev_ifindex),
                     static_cast<device::GidType>(entry.gid_type), entry.ndev_ifindex});
    char name[IF_NAMESIZE];
    if (entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name) != nullptr) {
      netdev_ = name;
    }
  }
}

void VerbsDevice::RefreshPkeys() {
  pkeys_.clear();
  __be16 pkey = 0;
  for (int index = 0; index < port_.pkey_table_length; ++index) {
    if (ibv_query_pkey(hw_, number_, index, &pkey) != 0) return;
    pkeys_.push_back(be16toh(pkey));
  }
}

int VerbsDevice::async_fd() const noexcept {
  return hw_ != nullptr ? hw_->async_fd : -1;
}

std::vector<device::AsyncEventType> VerbsDevice::TakeAsyncEvents() {
  std::vector<device::AsyncEventType> types;
  bool changed = false;
  bool going = false;
  ibv_async_event event;
  while (hw_ != nullptr && ibv_get_async_event(hw_, &event) == 0) {
    const bool of_port = event.event_type != IBV_EVENT_DEVICE_FATAL;
    if (!of_port || event.element.port_num == number_) {
      types.push_back(static_cast<device::AsyncEventType>(event.event_type));
    }
    going |= !of_port;
    changed = true;
    ibv_ack_async_event(&event);
  }
  if (changed && !going) Refresh();
  return types;
}

std::vector<device::CounterValue> VerbsDevice::Counters() const {
  return hw_ != nullptr ? ReadHardwareCounters(ibv_name_, number_)
                        : std::vector<device::CounterValue>();
}

absl::StatusOr<std::unique_ptr<device::Context>> VerbsDevice::Open(uint32_t engine) {
  if (hw_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("open_device: device ", name_, " was removed"));
  }
  RD_ASSIGN_OR_RETURN(std::shared_ptr<OpenContext> open,
                      OpenContext::Open(device_, number_, attr_, paths_[engine]));
  std::erase_if(opened_, [](const auto& context) { return context.expired(); });
  opened_.push_back(open->hardware());
  return std::make_unique<VerbsContext>(std::move(open), paths_);
}

std::vector<std::shared_ptr<OpenHardware>> VerbsDevice::opened() const {
  std::vector<std::shared_ptr<OpenHardware>> present;
  for (const std::weak_ptr<OpenHardware>& opened : opened_) {
    if (std::shared_ptr<OpenHardware> hardware = opened.lock())
      present.push_back(std::move(hardware));
  }
  return present;
}

void VerbsDevice::SetRemoved() {
  if (hw_ == nullptr) return;
  ibv_close_device(std::exchange(hw_, nullptr));
  port_.state = device::PortState::kDown;
  gids_.clear();
}

}  // namespace rdmad::verbs
