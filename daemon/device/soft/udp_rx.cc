#include "daemon/device/soft/udp_rx.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/base/socket_address.h"
#include "daemon/device/soft/udp_socket.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/icrc_id.h"
#include "daemon/wire/icrc_run.h"

#ifndef UDP_GRO
#define UDP_GRO 104  // newer than some C libraries' headers
#endif

namespace rdmad::soft {
namespace {

// Batches are large: few of them keep the turn short and the buffers in the processor's cache.
// Singles are small: many of them share the cost of the system call.
constexpr size_t kMessagesPerCallOfBatches = 8;
constexpr uint32_t kFlowLabelMask = 0xfffff;
constexpr size_t kBatchBytes = 16384;  // a message of this size or more is called a batch

struct Ancillary {
  size_t segment_bytes = 0;  // 0: the message is one packet
  uint8_t traffic_class = 0;
  uint8_t hop_limit = Flow{}.hop_limit;
  uint32_t flow_label = 0;
};

template <typename T>
T ControlValue(const cmsghdr* control) noexcept {
  T value{};
  const size_t bytes = control->cmsg_len - CMSG_LEN(0);
  std::memcpy(&value, CMSG_DATA(control), std::min(bytes, sizeof(value)));
  return value;
}

Ancillary ReadControl(const msghdr& header) noexcept {
  Ancillary result;
  // The macros want a msghdr they may not write to, yet take it by non-const pointer.
  msghdr copy = header;
  for (cmsghdr* control = CMSG_FIRSTHDR(&copy); control != nullptr;
       control = CMSG_NXTHDR(&copy, control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      const int value = ControlValue<int>(control);
      if (value > 0) result.segment_bytes = static_cast<size_t>(value);
    } else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_TOS) {
      result.traffic_class = ControlValue<uint8_t>(control);
    } else if (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_TCLASS) {
      result.traffic_class = static_cast<uint8_t>(ControlValue<int>(control));
    } else if ((control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_TTL) ||
               (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_HOPLIMIT)) {
      result.hop_limit = static_cast<uint8_t>(ControlValue<int>(control));
    } else if (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == kIpv6FlowInfo) {
      result.flow_label = ntohl(ControlValue<uint32_t>(control)) & kFlowLabelMask;
    }
  }
  return result;
}

}  // namespace

UdpRxBuffers::UdpRxBuffers() : memory_(new uint8_t[kMessages * kMessageBytes]) {
  for (size_t i = 0; i < kMessages; ++i) {
    iovecs_[i] = {memory_.get() + i * kMessageBytes, kMessageBytes};
    msghdr& header = headers_[i].msg_hdr;
    header.msg_name = &sources_[i];
    header.msg_iov = &iovecs_[i];
    header.msg_iovlen = 1;
    header.msg_control = controls_[i].data();
  }
}

int UdpRxBuffers::Receive(int fd, size_t count) noexcept {
  // The kernel has overwritten the lengths of those that the last call used.
  for (size_t i = 0; i < used_; ++i) {
    msghdr& header = headers_[i].msg_hdr;
    header.msg_namelen = sizeof(sockaddr_storage);
    header.msg_controllen = kControlBytes;
    header.msg_flags = 0;
  }
  const int received =
      ::recvmmsg(fd, headers_.data(), static_cast<unsigned>(std::min(count, kMessages)),
                 MSG_DONTWAIT, nullptr);
  // One more may have been begun when the call failed in the middle.
  used_ = std::min<size_t>(kMessages, received > 0 ? static_cast<size_t>(received) + 1 : 1);
  return received;
}

std::span<const uint8_t> UdpRxBuffers::bytes(size_t index) const noexcept {
  return {memory_.get() + index * kMessageBytes,
          std::min<size_t>(headers_[index].msg_len, kMessageBytes)};
}

UdpRx::UdpRx(int fd, const IpAddress& local, uint16_t port, UdpCounters* counters) noexcept
    : fd_(fd), local_(local), port_(port), counters_(counters) {}

int UdpRx::Receive(UdpRxBuffers& buffers, PacketRx& up, bool* more, size_t max_messages) noexcept {
  const size_t limit = std::min(limit_, max_messages);
  const int received = buffers.Receive(fd_, limit);
  counters_->rx_syscalls.Add();
  *more = false;
  if (received <= 0) {
    // An interrupted or failed call says nothing about what is queued: a pending socket error is
    // cleared by it.
    if (received < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      counters_->rx_errors.Add();
      *more = true;
    }
    return 0;
  }
  const auto count = static_cast<size_t>(received);
  *more = count == limit;
  counters_->rx_messages.Add(count);
  size_t largest_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::span<const uint8_t> bytes = buffers.bytes(i);
    largest_bytes = std::max(largest_bytes, bytes.size());
    OnMessage(buffers.header(i), bytes, up);
  }
  limit_ = largest_bytes >= kBatchBytes ? kMessagesPerCallOfBatches : UdpRxBuffers::kMessages;
  return received;
}

void UdpRx::OnMessage(const mmsghdr& header, std::span<const uint8_t> bytes,
                      PacketRx& up) noexcept {
  if ((header.msg_hdr.msg_flags & MSG_TRUNC) != 0) return counters_->rx_drop_truncated.Add();
  const auto source =
      SocketAddress::FromSockaddr(header.msg_hdr.msg_name, header.msg_hdr.msg_namelen);
  if (!source.has_value() || source->ip.is_v4() != local_.is_v4())
    return counters_->rx_drop_bad_source.Add();
  if (source->port != port_ && up.IsOwn(source->ip)) return counters_->rx_drop_forged.Add();
  const Ancillary ancillary = ReadControl(header.msg_hdr);

  Flow flow;
  flow.local = local_;
  flow.remote = source->ip;
  flow.traffic_class = ancillary.traffic_class & static_cast<uint8_t>(~kEcnMask);
  // A batch holds packets whose IP headers say the same, so this is each one's.
  flow.ecn = ancillary.traffic_class & kEcnMask;
  flow.hop_limit = ancillary.hop_limit;
  flow.flow_label = ancillary.flow_label;
  if (flow.ecn == kEcnCe) counters_->rx_ecn_ce.Add();
  const wire::IcrcFlow icrc_flow(source->ip, local_, source->port, port_);
  wire::IcrcRun icrc(icrc_flow);
  const size_t segment_bytes =
      ancillary.segment_bytes != 0 ? ancillary.segment_bytes : bytes.size();

  uint64_t packets = 0;
  uint64_t packet_bytes = 0;
  // An empty datagram is one packet that is too short.
  do {
    const std::span<const uint8_t> segment = bytes.first(std::min(segment_bytes, bytes.size()));
    bytes = bytes.subspan(segment.size());
    wire::PacketView packet;
    if (const wire::DropReason reason = wire::ParsePacket(segment, &packet);
        reason != wire::DropReason::kNone) {
      counters_->rx_drop_parse[static_cast<size_t>(reason)].Add();
      continue;
    }
    if (!wire::IcrcIsGood(icrc_flow, packet.icrc, icrc.Compute(packet.icrc_input),
                          segment.size())) {
      counters_->rx_drop_icrc.Add();
      continue;
    }
    ++packets;
    packet_bytes += segment.size();
    up.OnPacket(flow, packet);
  } while (!bytes.empty());
  counters_->rx_packets.Add(packets);
  counters_->rx_bytes.Add(packet_bytes);
}

}  // namespace rdmad::soft
