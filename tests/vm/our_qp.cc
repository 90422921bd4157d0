#include "tests/vm/our_qp.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/base/status_macros.h"

namespace rdmad::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr uint32_t kRemoteRights = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;

}  // namespace

absl::StatusOr<OurHost> OurHost::Open(const Client& client, Pool& pool, const std::string& address, size_t bytes) {
  OurHost host;
  RD_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, client.GetDevices());
  for (const DeviceInfo& device : devices) {
    for (const Gid& gid : device.gids) {
      if (gid.text != address) continue;
      host.device = device;
      host.gid = gid;
    }
  }
  if (host.gid.text.empty()) return absl::NotFoundError(absl::StrCat("no device has ", address));
  RD_ASSIGN_OR_RETURN(host.pd, ProtectionDomain::Alloc(client, host.device.index));
  RD_ASSIGN_OR_RETURN(host.buffer, pool.Allocate(bytes));
  RD_ASSIGN_OR_RETURN(host.mr, host.pd.Reg(host.buffer.data(), bytes, kRemoteRights | kAccessLocalWrite | kAccessMwBind));
  return host;
}

absl::StatusOr<OurQp> OurQp::Open(const Client& client, const OurHost& host, QpType type,
                                  const SharedReceiveQueue& srq) {
  OurQp out;
  RD_ASSIGN_OR_RETURN(out.sends, CompletionQueue::Create(client, host.device.index, 64));
  RD_ASSIGN_OR_RETURN(out.channel, CompletionChannel::Create(client));
  RD_ASSIGN_OR_RETURN(out.receives, CompletionQueue::Create(client, host.device.index, 256, &out.channel));
  QpInit init;
  init.type = type;
  init.send_cq = out.sends;
  init.recv_cq = out.receives;
  init.srq = srq;
  init.cap = {.max_send_wr = 64, .max_recv_wr = 256};
  RD_ASSIGN_OR_RETURN(out.qp, QueuePair::Create(host.pd, init));
  return out;
}

absl::Status OurQp::Connect(const OurHost& host, const QpAddress& peer, Mtu mtu) {
  RD_RETURN_IF_ERROR(ToRtr(host, peer, mtu));
  return ToRts();
}

absl::Status OurQp::ToRtr(const OurHost& host, const QpAddress& peer, Mtu mtu) {
  const QpType type = qp.type();
  QpAttr attr;
  attr.state = QpState::kInit;
  attr.mask = kQpAttrState | kQpAttrPkeyIndex | kQpAttrPort | (type == QpType::kUd ? kQpAttrQkey : kQpAttrAccessFlags);
  attr.qkey = qkey;
  attr.access_flags = type == QpType::kRc ? kRemoteRights : static_cast<uint32_t>(kAccessRemoteWrite);
  RD_RETURN_IF_ERROR(qp.Modify(attr));
  attr.state = QpState::kRtr;
  attr.mask = kQpAttrState;
  if (type != QpType::kUd) attr.mask |= kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn;
  if (type == QpType::kRc) attr.mask |= kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
  attr.ah.dest_gid = peer.gid;
  attr.ah.sgid_index = host.gid.index;
  attr.ah.flow_label = route.flow_label;
  attr.ah.traffic_class = route.traffic_class;
  attr.ah.hop_limit = route.hop_limit;
  attr.path_mtu = mtu;
  attr.dest_qpn = peer.qpn;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 12;
  return qp.Modify(attr);
}

absl::Status OurQp::ToRts() {
  const QpType type = qp.type();
  QpAttr attr;
  attr.state = QpState::kRts;
  attr.mask = kQpAttrState | kQpAttrSqPsn;
  if (type == QpType::kRc) attr.mask |= kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrMaxQpRdAtomic;
  attr.sq_psn = psn;
  // 4.096 us * 2^17: half a second.
  attr.timeout = 17;
  attr.retry_count = 7;
  attr.rnr_retry = rnr_retry;
  attr.max_rd_atomic = 4;
  return qp.Modify(attr);
}

absl::StatusOr<Wc> OurQp::Do(const SendWr& wr) {
  RD_RETURN_IF_ERROR(qp.PostSend({&wr, 1}));
  Wc wc;
  RD_RETURN_IF_ERROR(sends.Wait({&wc, 1}, kPatience, WaitStyle::kPolled).status());
  return wc;
}

absl::StatusOr<Wc> OurQp::NextReceive(absl::Duration patience) {
  Wc wc;
  RD_RETURN_IF_ERROR(receives.Wait({&wc, 1}, patience, WaitStyle::kPolled).status());
  return wc;
}

}  // namespace rdmad::testing
