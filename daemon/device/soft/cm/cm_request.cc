#include "daemon/device/soft/cm/cm_request.h"

#include <algorithm>

namespace rdmad::soft {
namespace {

using IpCmHeaderOut = std::span<uint8_t, wire::kIpCmHeaderBytes>;
using IpCmHeaderIn = std::span<const uint8_t, wire::kIpCmHeaderBytes>;

// Addresses inside a message have no scope; they lie on the link that the packet came over.
bool SameAddress(const IpAddress& named, const IpAddress& actual) {
  return named.bytes() == actual.bytes();
}

device::QpType QpTypeOf(const wire::CmReq& req) {
  return req.transport == wire::CmTransport::kUc ? device::QpType::kUc : device::QpType::kRc;
}

}  // namespace

wire::CmReq MakeReq(const CmFacts& facts, const device::ConnParam& param, device::PortSpace space,
                    const SocketAddress& local, const SocketAddress& peer,
                    const CmOptions& options) {
  wire::CmReq req;
  req.local_comm_id = facts.local_id;
  req.service_id = wire::IpServiceId(static_cast<wire::PortSpace>(space), peer.port);
  req.local_ca_guid = facts.node_guid;
  req.local_qpn = facts.local_qpn;
  req.transport =
      facts.qp_type == device::QpType::kUc ? wire::CmTransport::kUc : wire::CmTransport::kRc;
  req.responder_resources = facts.responder_resources;
  req.initiator_depth = facts.initiator_depth;
  req.remote_cm_response_timeout = options.response_timeout;
  req.local_cm_response_timeout = options.response_timeout;
  req.end_to_end_flow_control = param.flow_control != 0;
  req.starting_psn = facts.local_psn;
  req.retry_count = facts.retry_count;
  req.path_mtu = static_cast<uint8_t>(facts.path_mtu);
  req.rnr_retry_count = facts.rnr_retry_count;
  req.max_cm_retries = static_cast<uint8_t>(options.max_cm_retries);
  req.srq = param.srq;
  // No LIDs on Ethernet; the kernel says "permissive" too.
  req.primary.local_lid = 0xffff;
  req.primary.remote_lid = 0xffff;
  req.primary.local_gid = facts.flow.local.gid();
  req.primary.remote_gid = facts.flow.remote.gid();
  req.primary.traffic_class = facts.flow.traffic_class;
  req.primary.hop_limit = facts.flow.hop_limit;
  // For the peer's QP: there and back, and our delay.
  req.primary.local_ack_timeout = AckTimeoutCode(facts.ack_timeout, options.target_ack_delay);

  const wire::IpCmHeader header{
      .source_port = local.port, .source = local.ip, .destination = peer.ip};
  wire::BuildIpCmHeader(header, IpCmHeaderOut(req.private_data.data(), wire::kIpCmHeaderBytes));
  std::copy(param.private_data.begin(), param.private_data.end(),
            req.private_data.begin() + wire::kIpCmHeaderBytes);
  return req;
}

std::optional<wire::RejReason> ReadReq(const wire::CmReq& req, const Flow& flow,
                                       CmRequest* request) {
  const bool known =
      req.transport == wire::CmTransport::kRc || req.transport == wire::CmTransport::kUc;
  if (!known) return wire::RejReason::kInvalidTransport;
  const std::optional<wire::IpService> service = wire::ParseIpServiceId(req.service_id);
  // Datagram services are asked for by SIDR; nobody could accept a connection there.
  if (!service || service->space == wire::PortSpace::kUdp) {
    return wire::RejReason::kInvalidServiceId;
  }
  const std::optional<wire::IpCmHeader> header =
      wire::ParseIpCmHeader(IpCmHeaderIn(req.private_data.data(), wire::kIpCmHeaderBytes));
  if (!header || header->major_version != 0) return wire::RejReason::kUnsupported;
  // Who asks and whom must be the two ends of the packet: an answer to any other address would not
  // reach the peer's QP.
  const bool ours = SameAddress(IpAddress::FromGid(req.primary.remote_gid), flow.local) &&
                    SameAddress(header->destination, flow.local);
  const bool theirs = SameAddress(IpAddress::FromGid(req.primary.local_gid), flow.remote) &&
                      SameAddress(header->source, flow.remote);
  if (!ours || !theirs) return wire::RejReason::kInvalidGid;
  request->space = static_cast<device::PortSpace>(service->space);
  request->local = {flow.local, service->port};
  request->peer = {flow.remote, header->source_port};
  return std::nullopt;
}

void TakeReq(const wire::CmReq& req, const CmOptions& options, CmFacts* facts) {
  facts->qp_type = QpTypeOf(req);
  facts->remote_id = req.local_comm_id;
  facts->remote_qpn = req.local_qpn;
  facts->remote_psn = req.starting_psn;
  facts->path_mtu = static_cast<device::Mtu>(req.path_mtu);
  facts->responder_resources = req.initiator_depth;
  facts->initiator_depth = req.responder_resources;
  facts->retry_count = req.retry_count;
  facts->rnr_retry_count = req.rnr_retry_count;
  facts->ack_timeout = BoundedAckTimeout(req.primary.local_ack_timeout, options.local_ack_timeout);
  // An application that sets a type of service sets it for both directions.
  facts->flow.traffic_class = req.primary.traffic_class;
}

device::ConnParam ParamOf(const wire::CmReq& req) {
  device::ConnParam param;
  // The whole field: only the application knows how much of it counts.
  param.private_data.assign(req.private_data.begin() + wire::kIpCmHeaderBytes,
                            req.private_data.end());
  param.responder_resources = req.initiator_depth;
  param.initiator_depth = req.responder_resources;
  param.flow_control = req.end_to_end_flow_control ? 1 : 0;
  param.retry_count = req.retry_count;
  param.rnr_retry_count = req.rnr_retry_count;
  param.srq = req.srq;
  param.qpn = req.local_qpn.value();
  param.qp_type = QpTypeOf(req);
  return param;
}

}  // namespace rdmad::soft
