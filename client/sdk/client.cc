#include "rdmad/client.h"

#include <algorithm>
#include <utility>

#include "client/sdk/pipe_status.h"
#include "client/sdk/session.h"
#include "client/sdk/status_macros.h"
#include "proto/shm/event.h"

namespace rdmad {
namespace {

PortInfo FromProto(const v1::Port& port) {
  PortInfo info;
  info.phys_state = static_cast<uint8_t>(port.phys_state());
  info.active_width = static_cast<uint8_t>(port.active_width());
  info.active_speed = static_cast<uint8_t>(port.active_speed());
  info.gid_table_length = port.gid_table_length();
  info.cap_flags = port.cap_flags();
  info.cap_flags2 = static_cast<uint16_t>(port.cap_flags2());
  info.bad_pkey_count = port.bad_pkey_count();
  info.qkey_violation_count = port.qkey_violation_count();
  for (const uint32_t pkey : port.pkeys()) info.pkeys.push_back(static_cast<uint16_t>(pkey));
  info.sm_lid = static_cast<uint16_t>(port.sm_lid());
  info.sm_sl = static_cast<uint8_t>(port.sm_sl());
  info.subnet_timeout = static_cast<uint8_t>(port.subnet_timeout());
  info.init_type_reply = static_cast<uint8_t>(port.init_type_reply());
  info.max_vl_num = static_cast<uint8_t>(port.max_vl_num());
  info.flags = static_cast<uint8_t>(port.flags());
  return info;
}

DeviceInfo FromProto(const v1::Device& device) {
  DeviceInfo info;
  info.index = device.index();
  info.name = device.name();
  info.kind = device.kind();
  info.netdev = device.netdev();
  info.node_guid = device.node_guid();
  info.port_state = device.port_state();
  info.active_mtu = static_cast<Mtu>(device.active_mtu());
  info.max_mtu = static_cast<Mtu>(device.max_mtu());
  for (const v1::Gid& gid : device.gids()) {
    Gid& entry = info.gids.emplace_back();
    entry.index = gid.index();
    std::copy_n(gid.raw().begin(), std::min(gid.raw().size(), entry.raw.size()), entry.raw.begin());
    entry.text = gid.text();
    entry.type = gid.type();
    entry.interface_index = gid.interface_index();
  }
  info.max_qp = device.max_qp();
  info.max_qp_wr = device.max_qp_wr();
  info.max_sge = device.max_sge();
  info.max_inline_bytes = device.max_inline_bytes();
  info.max_cq = device.max_cq();
  info.max_cqe = device.max_cqe();
  info.max_mr = device.max_mr();
  info.max_mr_bytes = device.max_mr_bytes();
  info.max_msg_bytes = device.max_msg_bytes();
  info.max_qp_rd_atom = device.max_qp_rd_atom();
  info.max_pd = device.max_pd();
  info.max_srq = device.max_srq();
  info.max_srq_wr = device.max_srq_wr();
  info.max_srq_sge = device.max_srq_sge();
  info.max_ah = device.max_ah();
  info.max_mw = device.max_mw();
  info.max_mcast_groups = device.max_mcast_groups();
  info.max_mcast_qps = device.max_mcast_qps();
  info.atomic_capability = device.atomic_capability();
  info.num_comp_vectors = device.num_comp_vectors();
  info.link_layer = device.link_layer();
  info.lid = static_cast<uint16_t>(device.lid());
  info.lmc = static_cast<uint8_t>(device.lmc());
  info.fw_ver = device.fw_ver();
  info.sys_image_guid = device.sys_image_guid();
  info.page_size_cap = device.page_size_cap();
  info.vendor_id = device.vendor_id();
  info.vendor_part_id = device.vendor_part_id();
  info.hw_ver = device.hw_ver();
  info.device_cap_flags = device.device_cap_flags();
  info.max_sge_rd = device.max_sge_rd();
  info.max_res_rd_atom = device.max_res_rd_atom();
  info.max_qp_init_rd_atom = device.max_qp_init_rd_atom();
  info.max_total_mcast_qps = device.max_total_mcast_qps();
  info.max_pkeys = device.max_pkeys();
  info.local_ca_ack_delay = static_cast<uint8_t>(device.local_ca_ack_delay());
  info.port = FromProto(device.port());
  return info;
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> sdk::QueryDevices(Session& session) {
  SDK_ASSIGN_OR_RETURN(const v1::QueryDevicesReply reply, session.Call(rpc::kQueryDevices, {}));
  std::vector<DeviceInfo> devices;
  for (const v1::Device& device : reply.devices()) devices.push_back(FromProto(device));
  return devices;
}

Client::Client(std::shared_ptr<sdk::ClientState> state) : state_(std::move(state)) {}

absl::StatusOr<Client> Client::Attach(AttachOptions options) {
  std::string run_dir = sdk::ResolveRunDir(options.run_dir);
  SDK_ASSIGN_OR_RETURN(std::shared_ptr<sdk::Session> session, sdk::Session::Attach(run_dir, options));
  return Client(std::make_shared<sdk::ClientState>(std::move(options), std::move(run_dir), std::move(session)));
}

uint64_t Client::session_id() const { return state_->session()->id(); }
std::string Client::daemon_version() const { return state_->session()->daemon_version(); }
const std::string& Client::run_dir() const { return state_->run_dir(); }
bool Client::IsAttached() const { return state_->session()->CheckAlive(); }

absl::StatusOr<std::vector<DeviceInfo>> Client::GetDevices() const {
  SDK_ASSIGN_OR_RETURN(const std::shared_ptr<sdk::Session> session, state_->Live());
  return sdk::QueryDevices(*session);
}

int Client::async_fd() const { return state_->session()->async_pipe().fd(); }

absl::StatusOr<AsyncEvent> Client::GetAsyncEvent(absl::Duration timeout) {
  const std::shared_ptr<sdk::Session> session = state_->session();
  shm::AsyncEvent event{};
  const sdk::PipeResult result =
      session->async_pipe().Read(&event, sizeof(event), sdk::Deadline::After(timeout));
  if (result == sdk::PipeResult::kRecord) return AsyncEvent{event.type, event.handle};
  if (result != sdk::PipeResult::kHangup) return sdk::PipeStatus(result, "get_async_event");
  session->MarkDead();
  if (session->TakeFatalEvent()) return AsyncEvent{kAsyncDeviceFatal, 0};
  return session->DeadError();
}

}  // namespace rdmad
