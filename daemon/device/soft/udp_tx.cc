#include "daemon/device/soft/udp_tx.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>

#include "daemon/base/check.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103  // newer than some C libraries' headers
#endif

namespace rdmad::soft {
namespace {

// The copy is what first touches the payload, and alone it would wait for each line of it.
constexpr size_t kPrefetchPackets = 2;  // ahead
constexpr size_t kPrefetchBytes = 2048;
constexpr size_t kLineBytes = 64;

void PrefetchPayload(const TxPacket& packet) noexcept {
  if (packet.payload.empty()) return;
  const iovec& slice = packet.payload[0];
  const auto* at = static_cast<const char*>(slice.iov_base);
  const size_t bytes = std::min(slice.iov_len, kPrefetchBytes);
  for (size_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(at + i);
}

const uint8_t* At(const iovec& slice) noexcept {
  return static_cast<const uint8_t*>(slice.iov_base);
}

// sendmsg does not write to what it sends, but iovec has no const.
void* Mutable(const void* data) noexcept {
  return const_cast<void*>(data);
}

}  // namespace

UdpTx::UdpTx(int fd, uint16_t port, UdpCounters* counters) noexcept
    : fd_(fd), port_(port), counters_(counters), terms_(0) {}

size_t UdpTx::Send(const Flow& flow, std::span<const TxPacket> packets) noexcept {
  const UdpPeer peer(flow, port_);
  const wire::IcrcFlow icrc_flow(flow.local, flow.remote, port_, port_);
  wire::IcrcRun icrc(icrc_flow);
  size_t taken = 0;
  while (taken < packets.size()) {
    Stage(peer, icrc, packets.subspan(taken));
    if (Flush(&taken) == Outcome::kFull) break;
  }
  return taken;
}

size_t UdpTx::Stage(const UdpPeer& peer, wire::IcrcRun& icrc,
                    std::span<const TxPacket> packets) noexcept {
  message_count_ = staged_packets_ = arena_bytes_ = 0;
  for (const TxPacket& packet : packets) {
    if (staged_packets_ == kMaxStagedPackets) break;
    if (staged_packets_ + kPrefetchPackets < packets.size()) {
      PrefetchPayload(packets[staged_packets_ + kPrefetchPackets]);
    }
    const size_t bytes = wire::UdpPayloadBytes(packet.fields.opcode, packet.payload_bytes);
    if (!FitsMessage(bytes)) StartMessage(peer, bytes);
    StagePacket(icrc, packet, bytes);
    ++staged_packets_;
  }
  FinishMessages();
  return staged_packets_;
}

bool UdpTx::FitsMessage(size_t udp_payload_bytes) const noexcept {
  if (message_count_ == 0 || batching_ != Batching::kOn) return false;
  const Message& message = messages_[message_count_ - 1];
  return !message.closed && udp_payload_bytes <= message.segment_bytes &&
         message.packets < kMaxBatchPackets && message.bytes + udp_payload_bytes <= kMaxBatchBytes;
}

void UdpTx::StartMessage(const UdpPeer& peer, size_t udp_payload_bytes) noexcept {
  const size_t index = message_count_++;
  messages_[index] = {0, static_cast<uint16_t>(udp_payload_bytes), 0, false};
  msghdr& header = headers_[index].msg_hdr;
  header.msg_name = Mutable(&peer.address());
  header.msg_namelen = peer.address_bytes();
  pieces_[index] = {&arena_[arena_bytes_], 0};
  header.msg_iov = &pieces_[index];
  header.msg_iovlen = 1;
  header.msg_control = controls_[index].data();
  header.msg_controllen =
      peer.CopyControl(std::span(controls_[index]).first<UdpPeer::kMaxControlBytes>());
  header.msg_flags = 0;
}

void UdpTx::StagePacket(wire::IcrcRun& icrc, const TxPacket& packet,
                        size_t udp_payload_bytes) noexcept {
  RD_CHECK(packet.payload_bytes <= kMaxPayloadBytes, "no path MTU has room for this packet");
  uint8_t* const head = &arena_[arena_bytes_];
  const size_t head_bytes =
      wire::BuildHeaders(packet.fields, packet.payload_bytes,
                         std::span<uint8_t, wire::kMaxHeaderBytes>(head, wire::kMaxHeaderBytes));
  const uint32_t crc = icrc.Begin(udp_payload_bytes, {head, head_bytes});
  uint8_t* const payload = head + head_bytes;
  uint8_t* tail = payload;
  for (const iovec& slice : packet.payload) tail = std::copy_n(At(slice), slice.iov_len, tail);
  RD_DCHECK(tail == payload + packet.payload_bytes, "payload slices do not add up");

  // The id's term goes onto the finished ICRC: BuildTrailer continues the CRC over the pad.
  const size_t tail_bytes =
      wire::BuildTrailer(packet.payload_bytes,
                         wire::IcrcUpdate(crc, {payload, packet.payload_bytes}),
                         std::span<uint8_t, wire::kMaxTrailerBytes>(tail, wire::kMaxTrailerBytes));
  if (const uint32_t term = IdTerm(icrc.flow(), udp_payload_bytes); term != 0) {
    const std::span<uint8_t, wire::kIcrcBytes> stored(tail + tail_bytes - wire::kIcrcBytes,
                                                      wire::kIcrcBytes);
    wire::StoreIcrc(wire::LoadIcrc(stored) ^ term, stored);
  }
  RD_DCHECK(tail + tail_bytes == head + udp_payload_bytes, "a packet of another size than said");
  arena_bytes_ += udp_payload_bytes;
  pieces_[message_count_ - 1].iov_len += udp_payload_bytes;

  Message& message = messages_[message_count_ - 1];
  ++message.packets;
  message.bytes += static_cast<uint32_t>(udp_payload_bytes);
  message.closed = udp_payload_bytes < message.segment_bytes;
}

// What the ICRC of the next packet differs by from that of a packet with identification 0.
uint32_t UdpTx::IdTerm(const wire::IcrcFlow& icrc, size_t udp_payload_bytes) noexcept {
  const Message& message = messages_[message_count_ - 1];
  if (!icrc.is_ipv4() || message.packets == 0) return 0;
  if (udp_payload_bytes != message.segment_bytes) {
    return wire::IcrcIdTerm(message.packets, udp_payload_bytes);
  }
  if (terms_bytes_ != udp_payload_bytes) {
    terms_ = wire::GsoIcrcTerms(udp_payload_bytes);
    terms_bytes_ = udp_payload_bytes;
  }
  return terms_[message.packets];
}

void UdpTx::FinishMessages() noexcept {
  for (size_t i = 0; i < message_count_; ++i) {
    msghdr& header = headers_[i].msg_hdr;
    if (messages_[i].packets > 1) {
      std::byte* at = static_cast<std::byte*>(header.msg_control) + header.msg_controllen;
      header.msg_controllen += PutControl(at, IPPROTO_UDP, UDP_SEGMENT, messages_[i].segment_bytes);
    }
    if (header.msg_controllen == 0) header.msg_control = nullptr;
  }
}

UdpTx::Outcome UdpTx::Flush(size_t* taken) noexcept {
  size_t done = 0;
  while (done < message_count_) {
    const int sent = ::sendmmsg(fd_, &headers_[done], static_cast<unsigned>(message_count_ - done),
                                MSG_DONTWAIT);
    const int error = errno;
    counters_->tx_syscalls.Add();
    if (sent > 0) {
      CountSent(std::span(messages_).subspan(done, static_cast<size_t>(sent)), taken);
      done += static_cast<size_t>(sent);
      continue;
    }
    if (error == EINTR) continue;
    const Outcome outcome = OnSendError(error, messages_[done]);
    if (outcome != Outcome::kDone) return outcome;
    *taken += messages_[done].packets;
    ++done;
  }
  return Outcome::kDone;
}

void UdpTx::CountSent(std::span<const Message> messages, size_t* taken) noexcept {
  if (batching_ == Batching::kProbing) {
    batching_ = Batching::kOff;
    counters_->tx_gso_fallbacks.Add();
  }
  size_t packets = 0;
  size_t bytes = 0;
  for (const Message& message : messages) {
    packets += message.packets;
    bytes += message.bytes;
  }
  counters_->tx_messages.Add(messages.size());
  counters_->tx_packets.Add(packets);
  counters_->tx_bytes.Add(bytes);
  *taken += packets;
}

// kDone: the message is lost.
UdpTx::Outcome UdpTx::OnSendError(int error, const Message& message) noexcept {
  if (error == EAGAIN || error == EWOULDBLOCK) {
    counters_->tx_path_full.Add();
    return Outcome::kFull;
  }
  if (message.packets > 1 && (error == EIO || error == EINVAL)) {
    batching_ = Batching::kProbing;
    return Outcome::kBuildAgain;
  }
  if (batching_ == Batching::kProbing) batching_ = Batching::kOn;
  CountLost(error, message.packets);
  return Outcome::kDone;
}

void UdpTx::CountLost(int error, uint32_t packets) noexcept {
  switch (error) {
    case EMSGSIZE:
      return counters_->tx_lost_too_big.Add(packets);
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
      return counters_->tx_lost_no_route.Add(packets);
    case EPERM:
    case EACCES:
      return counters_->tx_lost_denied.Add(packets);
    case ENOBUFS:
    case ENOMEM:
      return counters_->tx_lost_no_buffers.Add(packets);
    default:
      return counters_->tx_lost_other.Add(packets);
  }
}

}  // namespace rdmad::soft
