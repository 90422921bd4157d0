#include "tests/vm/kernel_qp.h"

#include <arpa/inet.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

absl::StatusOr<ibv_wc> Next(ibv_cq* cq, absl::Duration patience = absl::Seconds(120)) {
  ibv_wc wc = {};
  for (const absl::Time deadline = absl::Now() + patience; absl::Now() < deadline; ::sched_yield()) {
    if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
  }
  return absl::DeadlineExceededError("no completion from the kernel's device");
}

absl::Status Modify(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  const int error = ibv_modify_qp(qp, attr, mask);
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("ibv_modify_qp to ", attr->qp_state));
}

}  // namespace

std::array<uint8_t, 16> GidOf(const std::string& address) {
  std::array<uint8_t, 16> gid = {};
  if (::inet_pton(AF_INET6, address.c_str(), gid.data()) == 1) return gid;
  gid[10] = gid[11] = 0xff;
  ::inet_pton(AF_INET, address.c_str(), &gid[12]);
  return gid;
}

absl::StatusOr<uint8_t> KernelGidIndex(ibv_context* context, const std::array<uint8_t, 16>& gid) {
  // The kernel fills its table some time after the address is there.
  for (const absl::Time deadline = absl::Now() + absl::Seconds(120); absl::Now() < deadline;
       absl::SleepFor(absl::Milliseconds(100))) {
    for (uint32_t i = 0; i < 64; ++i) {
      ibv_gid_entry entry = {};
      if (ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
          std::memcmp(entry.gid.raw, gid.data(), gid.size()) == 0) {
        return static_cast<uint8_t>(i);
      }
    }
  }
  return absl::NotFoundError("no RoCE v2 GID for the address");
}

absl::StatusOr<std::unique_ptr<KernelHost>> KernelHost::Open(const std::string& device, const std::string& address,
                                                             size_t bytes) {
  auto host = std::make_unique<KernelHost>();
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  for (int i = 0; i < count; ++i) {
    if (device == ibv_get_device_name(list[i])) host->context.reset(ibv_open_device(list[i]));
  }
  ibv_free_device_list(list);
  if (host->context == nullptr) return absl::NotFoundError(absl::StrCat("ibv_open_device: ", device));
  host->gid = GidOf(address);
  RD_ASSIGN_OR_RETURN(host->gid_index, KernelGidIndex(host->context.get(), host->gid));
  host->pd.reset(ibv_alloc_pd(host->context.get()));
  if (host->pd == nullptr) return absl::ErrnoToStatus(errno, "ibv_alloc_pd");
  host->buffer.resize(bytes);
  host->mr.reset(ibv_reg_mr(host->pd.get(), host->data(), bytes, kRights));
  if (host->mr == nullptr) return absl::ErrnoToStatus(errno, "ibv_reg_mr");
  return host;
}

absl::StatusOr<KernelQp> KernelQp::Open(KernelHost& host, ibv_qp_type type) {
  KernelQp out;
  out.sends.reset(ibv_create_cq(host.context.get(), 64, nullptr, nullptr, 0));
  out.channel.reset(ibv_create_comp_channel(host.context.get()));
  if (out.channel == nullptr) return absl::ErrnoToStatus(errno, "ibv_create_comp_channel");
  out.receives.reset(ibv_create_cq(host.context.get(), 64, nullptr, out.channel.get(), 0));
  if (out.sends == nullptr || out.receives == nullptr) return absl::ErrnoToStatus(errno, "ibv_create_cq");
  ibv_qp_init_attr init = {};
  init.send_cq = out.sends.get();
  init.recv_cq = out.receives.get();
  init.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
  init.qp_type = type;
  out.qp.reset(ibv_create_qp(host.pd.get(), &init));
  if (out.qp == nullptr) return absl::ErrnoToStatus(errno, "ibv_create_qp");
  return out;
}

absl::Status KernelQp::Connect(const KernelHost& host, const QpAddress& peer, ibv_mtu mtu) {
  const ibv_qp_type type = qp->qp_type;
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qkey = qkey;
  attr.qp_access_flags = kRights & ~IBV_ACCESS_MW_BIND;
  RD_RETURN_IF_ERROR(Modify(qp.get(), &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
  attr.qp_state = IBV_QPS_RTR;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  attr.ah_attr.grh.sgid_index = host.gid_index;
  attr.ah_attr.grh.flow_label = route.flow_label;
  attr.ah_attr.grh.traffic_class = route.traffic_class;
  attr.ah_attr.grh.hop_limit = route.hop_limit;
  attr.path_mtu = mtu;
  attr.dest_qp_num = peer.qpn;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 12;
  int mask = IBV_QP_STATE;
  if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  RD_RETURN_IF_ERROR(Modify(qp.get(), &attr, mask));
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = psn;
  attr.timeout = 17;
  attr.retry_cnt = 6;  // rxe takes 7 for "for ever"
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = 4;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type == IBV_QPT_RC) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return Modify(qp.get(), &attr, mask);
}

absl::StatusOr<ibv_wc> KernelQp::Do(ibv_send_wr wr) {
  wr.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp.get(), &wr, &bad);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("ibv_post_send of opcode ", wr.opcode));
  return Next(sends.get());
}

absl::Status KernelQp::PostReceive(KernelHost& host, size_t offset, size_t bytes) {
  ibv_sge sge = host.At(offset, bytes);
  ibv_recv_wr wr = {};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(qp.get(), &wr, &bad);
  return error == 0 ? absl::OkStatus() : absl::ErrnoToStatus(error, "ibv_post_recv");
}

absl::StatusOr<ibv_wc> KernelQp::NextReceive(absl::Duration patience) {
  return Next(receives.get(), patience);
}

}  // namespace rdmad::testing
