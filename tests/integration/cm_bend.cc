#include "tests/integration/cm_bend.h"

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/base/ip_address.h"
#include "daemon/wire/cm/cm_message.h"
#include "daemon/wire/icrc.h"

namespace rdmad::testing {
namespace {

constexpr size_t kUdpBytes = 8;
constexpr size_t kIcrcBytes = 4;
constexpr size_t kMadAt = 12 + 8;  // behind BTH and DETH

CmOnTheWire Shown(const wire::CmMessage& message) {
  if (const auto* req = std::get_if<wire::CmReq>(&message)) {
    return ReqOnTheWire{.comm_id = req->local_comm_id.value(),
                        .service_id = req->service_id,
                        .transport = static_cast<uint8_t>(req->transport),
                        .path_mtu = req->path_mtu,
                        .from = req->primary.local_gid,
                        .to = req->primary.remote_gid,
                        .annex_version = req->private_data[0]};
  }
  if (const auto* rej = std::get_if<wire::CmRej>(&message)) {
    return RejOnTheWire{.of_rep = rej->message == wire::CmMessageKind::kRep,
                        .remote_comm_id = rej->remote_comm_id.value(),
                        .reason = static_cast<uint16_t>(rej->reason)};
  }
  if (std::holds_alternative<wire::CmRtu>(message)) return RtuOnTheWire{};
  return {};
}

void Take(const CmOnTheWire& shown, wire::CmMessage* message) {
  if (const auto* from = std::get_if<ReqOnTheWire>(&shown)) {
    auto& req = std::get<wire::CmReq>(*message);
    req.local_comm_id = wire::CommId(from->comm_id);
    req.service_id = from->service_id;
    req.transport = static_cast<wire::CmTransport>(from->transport);
    req.path_mtu = from->path_mtu;
    req.primary.local_gid = from->from;
    req.primary.remote_gid = from->to;
    req.private_data[0] = from->annex_version;
  } else if (const auto* of = std::get_if<RejOnTheWire>(&shown)) {
    auto& rej = std::get<wire::CmRej>(*message);
    rej.remote_comm_id = wire::CommId(of->remote_comm_id);
    rej.reason = static_cast<wire::RejReason>(of->reason);
  }
}

IpAddress AddressAt(std::span<const uint8_t> ip, bool source) {
  if (ip[0] >> 4 == 4) {
    const auto at = ip.subspan(source ? 12 : 16);
    return IpAddress::FromV4(at[0], at[1], at[2], at[3]);
  }
  Gid bytes;
  std::copy_n(ip.subspan(source ? 8 : 24).begin(), bytes.size(), bytes.begin());
  return IpAddress::FromV6(bytes);
}

WireVerdict BendPacket(const CmBend& bend, WireDirection direction, std::span<uint8_t> ip) {
  const std::span<uint8_t> udp = ip.subspan(ip[0] >> 4 == 4 ? 20 : 40);
  const std::span<uint8_t> roce = udp.subspan(kUdpBytes);
  const bool to_qp1 = roce[5] == 0 && roce[6] == 0 && roce[7] == 1;
  if (!to_qp1 || roce.size() != kMadAt + wire::kMadBytes + kIcrcBytes) return WireVerdict::kPass;
  const wire::MadOut mad(roce.data() + kMadAt, wire::kMadBytes);
  wire::MadHeader header;
  wire::CmMessage message;
  if (wire::ParseCmMessage(mad, &header, &message) != wire::MadDropReason::kNone) {
    return WireVerdict::kPass;
  }
  CmOnTheWire shown = Shown(message);
  const WireVerdict verdict = bend(direction, shown);
  Take(shown, &message);
  wire::BuildCmMad(header.transaction_id, message, mad);
  const auto port = [&](size_t at) { return static_cast<uint16_t>(udp[at] << 8 | udp[at + 1]); };
  const wire::IcrcFlow flow(AddressAt(ip, true), AddressAt(ip, false), port(0), port(2));
  wire::StoreIcrc(flow.Compute(roce.first(roce.size() - kIcrcBytes)), roce.last<kIcrcBytes>());
  udp[6] = udp[7] = 0;  // no UDP checksum
  return verdict;
}

}  // namespace

WireHook BendingCm(CmBend bend) {
  return [bend = std::move(bend)](WireDirection direction, std::span<uint8_t> ip) {
    return BendPacket(bend, direction, ip);
  };
}

}  // namespace rdmad::testing
