// The receiving half of a datagram QP.
#include <arpa/inet.h>

#include <array>

#include "daemon/device/soft/ud_qp.h"
#include "daemon/wire/grh.h"
#include "proto/shm/completion_queue.h"

namespace rdmad::soft {

using device::QpState;
using device::WcStatus;

namespace {

// Host memory as a list without keys.
SgeList HostList(const device::Sge& sge) noexcept {
  return {.sges = {&sge, 1}, .host_pointers = true};
}

device::Sge HostSge(const uint8_t* data, size_t bytes) noexcept {
  return {.addr = reinterpret_cast<uintptr_t>(data),
          .length_bytes = static_cast<uint32_t>(bytes),
          .lkey = 0};
}

}  // namespace

void UdQp::OnPacket(const Flow& flow, const wire::PacketView& packet, TimeNs) noexcept {
  TransportCounters& counters = core_.counters;
  if (packet.info().transport != wire::Transport::kUd) {
    return Count(counters.drop_wrong_transport);
  }
  if (!wire::PKeysMatch(packet.pkey, wire::kDefaultPKey)) return Count(counters.drop_bad_pkey);
  const device::Sge payload = HostSge(packet.payload.data(), packet.payload.size());
  Receive({.flow = flow,
           .qkey = packet.deth.qkey.value(),
           .src_qpn = packet.deth.src_qpn.value(),
           .length_bytes = payload.length_bytes,
           .imm_be = htonl(packet.imm),
           .has_imm = packet.info().has(wire::kHasImmDt),
           .solicited = packet.solicited,
           .source = HostList(payload)});
}

void UdQp::Receive(const Datagram& datagram) noexcept {
  const QpState state = attr_.state;
  if (state < QpState::kRtr || state == QpState::kErr) return Count(core_.counters.drop_bad_state);
  if (datagram.qkey != attr_.qkey) return Count(core_.counters.drop_bad_qkey);
  ReceiveWqe wqe;
  if (!TakeReceive(wire::kGrhBytes + uint64_t{datagram.length_bytes}, &wqe)) return;

  std::array<uint8_t, wire::kGrhBytes> grh;
  const wire::Opcode opcode =
      datagram.has_imm ? wire::Opcode::kUdSendOnlyImm : wire::Opcode::kUdSendOnly;
  wire::BuildReceivedGrh(
      {.source = datagram.flow.remote,
       .destination = datagram.flow.local,
       .traffic_class = static_cast<uint8_t>(datagram.flow.traffic_class | datagram.flow.ecn),
       .hop_limit = datagram.flow.hop_limit,
       .flow_label = datagram.flow.flow_label,
       .udp_payload_bytes = wire::UdpPayloadBytes(opcode, datagram.length_bytes)},
      grh);
  const device::Sge grh_sge = HostSge(grh.data(), grh.size());
  const SgeList target{.sges = wqe.sges(),
                       .pd_id = srq_ != nullptr ? srq_->pd_id() : pd_id_,
                       .access = device::kAccessLocalWrite};
  SgeCursor to, from_grh, from_data;
  const bool placed = CopyBetween(HostList(grh_sge), from_grh, target, to, grh.size(), false,
                                  core_.mrs) == CopyResult::kOk &&
                      CopyBetween(datagram.source, from_data, target, to, datagram.length_bytes,
                                  true, core_.mrs) == CopyResult::kOk;
  if (!placed) return FailReceive(wqe, WcStatus::kLocProtErr);

  device::Wc wc{};
  wc.wr_id = wqe.wr_id;
  wc.status = WcStatus::kSuccess;
  wc.opcode = device::WcOpcode::kRecv;
  wc.flags = static_cast<uint8_t>(shm::kCqeRecvQueue | shm::kCqeGrh |
                                  (datagram.has_imm ? shm::kCqeWithImm : 0));
  wc.solicited = datagram.solicited;
  wc.byte_len = static_cast<uint32_t>(wire::kGrhBytes) + datagram.length_bytes;
  wc.imm_be = datagram.has_imm ? datagram.imm_be : 0;
  wc.src_qpn = datagram.src_qpn;
  Complete(recv_cq_, wc);
}

// The receive for a message of `bytes`. False: there is none that could take it; the message is
// dropped.
bool UdQp::TakeReceive(uint64_t bytes, ReceiveWqe* wqe) noexcept {
  TransportCounters& counters = core_.counters;
  if (srq_ == nullptr) {
    if (receives_.empty() && receive_source_ != nullptr) receive_source_->PostReceives();
    if (receives_.empty()) {
      Count(counters.drop_no_receive);
      return false;
    }
    if (receives_.next_capacity_bytes() < bytes) {
      Count(counters.drop_receive_too_short);
      return false;
    }
    receives_.Pop(wqe);
    return true;
  }
  if (!srq_->Take(wqe)) {
    Count(counters.drop_no_receive);
    return false;
  }
  if (wqe->capacity_bytes >= bytes) return true;
  Count(counters.drop_receive_too_short);
  FailReceive(*wqe, WcStatus::kLocLenErr);
  return false;
}

void UdQp::FailReceive(const ReceiveWqe& wqe, WcStatus status) noexcept {
  device::Wc wc{};
  wc.wr_id = wqe.wr_id;
  wc.status = status;
  wc.opcode = device::WcOpcode::kRecv;
  wc.flags = shm::kCqeRecvQueue;
  Complete(recv_cq_, wc);
  Count(core_.counters.qp_errors);
  MoveTo(QpState::kErr);
}

void UdQp::FlushReceives() noexcept {
  ReceiveWqe wqe;
  while (!receives_.empty()) {
    receives_.Pop(&wqe);
    device::Wc wc{};
    wc.wr_id = wqe.wr_id;
    wc.status = WcStatus::kWrFlushErr;
    wc.opcode = device::WcOpcode::kRecv;
    wc.flags = shm::kCqeRecvQueue;
    Complete(recv_cq_, wc);
  }
}

}  // namespace rdmad::soft
