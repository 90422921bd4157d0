#include "daemon/device/soft/cm/sidr_request.h"

#include <algorithm>

#include "daemon/wire/cm/ip_cm.h"

namespace rdmad::soft {

wire::CmSidrReq MakeSidrReq(const SidrFacts& facts, std::span<const uint8_t> private_data,
                            const SocketAddress& local, const SocketAddress& peer) {
  wire::CmSidrReq req;
  req.request_id = facts.request_id;
  req.service_id = facts.service_id;
  const wire::IpCmHeader header{
      .source_port = local.port, .source = local.ip, .destination = peer.ip};
  wire::BuildIpCmHeader(header, std::span(req.private_data).first<wire::kIpCmHeaderBytes>());
  std::copy(private_data.begin(), private_data.end(),
            req.private_data.begin() + wire::kIpCmHeaderBytes);
  return req;
}

std::optional<wire::SidrStatus> ReadSidrReq(const wire::CmSidrReq& req, const Flow& flow,
                                            CmRequest* request) {
  const std::optional<wire::IpService> service = wire::ParseIpServiceId(req.service_id);
  if (!service || service->space != wire::PortSpace::kUdp) {
    return wire::SidrStatus::kUnsupportedServiceId;
  }
  const std::optional<wire::IpCmHeader> header =
      wire::ParseIpCmHeader(std::span(req.private_data).first<wire::kIpCmHeaderBytes>());
  if (!header || header->major_version != 0) return wire::SidrStatus::kUnsupportedVersion;
  // Who asks and whom must be the two ends of the packet, as for a REQ. Addresses inside a message
  // have no scope.
  if (header->destination.bytes() != flow.local.bytes() ||
      header->source.bytes() != flow.remote.bytes()) {
    return wire::SidrStatus::kRejected;
  }
  request->space = device::PortSpace::kUdp;
  request->local = {flow.local, service->port};
  request->peer = {flow.remote, header->source_port};
  return std::nullopt;
}

device::ConnParam ParamOf(const wire::CmSidrReq& req) {
  device::ConnParam param;
  // The whole field: only the application knows how much of it counts.
  param.private_data.assign(req.private_data.begin() + wire::kIpCmHeaderBytes,
                            req.private_data.end());
  return param;
}

}  // namespace rdmad::soft
