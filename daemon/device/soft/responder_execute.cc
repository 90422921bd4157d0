// What the responder does with a request that has passed its checks.
#include <arpa/inet.h>

#include <cstring>

#include "daemon/device/soft/remote_atomic.h"
#include "daemon/device/soft/responder.h"

namespace rdmad::soft {

using wire::Opcode;
using wire::Operation;
using wire::PacketView;

Finding Responder::Execute(const PacketView& packet) noexcept {
  switch (packet.info().operation) {
    case Operation::kSend:
      return ExecuteSend(packet);
    case Operation::kWrite:
      return ExecuteWrite(packet);
    case Operation::kReadRequest:
      ExecuteRead(packet);
      return Finding::kPass;
    case Operation::kAtomicRequest:
      return ExecuteAtomic(packet);
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      break;
  }
  return Finding::kInvalidRequest;
}

Finding Responder::ExecuteSend(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const SgeList target = ReceiveList();
  const auto* from = reinterpret_cast<const std::byte*>(packet.payload.data());
  for (size_t left = packet.payload.size(); left > 0;) {
    const std::span<std::byte> to = receive_cursor_.Next(target, qp_.core.mrs, left);
    if (to.empty()) return Finding::kReceiveBroken;
    std::memcpy(to.data(), from, to.size());
    from += to.size();
    left -= to.size();
  }
  received_bytes_ += packet.payload.size();
  ++expected_psn_;
  message_ = info.ends_message() ? Message::kNone : Message::kSend;
  if (info.ends_message()) {
    const bool invalidates = info.has(wire::kHasIeth);
    const uint32_t key = packet.invalidate_rkey.value();
    // Before the completion says so. CheckKey() has found that it may be.
    if (invalidates) (void)qp_.core.mrs.InvalidateWindow(key, qp_.key_scope);
    CompleteReceive({.completes = true,
                     .is_write = false,
                     .has_imm = info.has(wire::kHasImmDt),
                     .has_inv = invalidates,
                     .solicited = packet.solicited,
                     .imm_be = invalidates ? key : htonl(packet.imm),
                     .byte_len = static_cast<uint32_t>(received_bytes_)});
  }
  return Finding::kPass;
}

Finding Responder::ExecuteWrite(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const auto bytes = static_cast<uint32_t>(packet.payload.size());
  if (bytes > 0) {
    // Again for each packet: the region may have been revoked since the first.
    std::byte* const to = Translate(write_rkey_, write_va_, bytes, device::kAccessRemoteWrite);
    if (to == nullptr) return Finding::kRemoteAccess;
    const auto* from = reinterpret_cast<const std::byte*>(packet.payload.data());
    if (info.ends_message()) {
      CopyLastByteLast(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
    write_va_ += bytes;
    write_left_bytes_ -= bytes;
  }
  ++expected_psn_;
  message_ = info.ends_message() ? Message::kNone : Message::kWrite;
  if (info.has(wire::kHasImmDt)) {
    CompleteReceive({.completes = true,
                     .is_write = true,
                     .has_imm = true,
                     .has_inv = false,
                     .solicited = packet.solicited,
                     .imm_be = htonl(packet.imm),
                     .byte_len = write_length_bytes_});
  }
  return Finding::kPass;
}

void Responder::ExecuteRead(const PacketView& packet) noexcept {
  const uint32_t length = packet.reth.dma_length_bytes;
  const uint32_t packets = ResponsePackets(length);
  PushResponse({.psn = packet.psn,
                .packets = packets,
                .va = packet.reth.va,
                .rkey = packet.reth.rkey.value(),
                .length_bytes = length,
                .msn = msn_ + 1});
  expected_psn_ += packets;
  has_response_end_ = true;
  response_end_ = expected_psn_;
}

Finding Responder::ExecuteAtomic(const PacketView& packet) noexcept {
  std::byte* const target = Translate(packet.atomic.rkey.value(), packet.atomic.va,
                                      sizeof(uint64_t), device::kAccessRemoteAtomic);
  if (target == nullptr) return Finding::kRemoteAccess;
  if (!IsAtomicTarget(target)) return Finding::kInvalidRequest;
  const uint64_t original =
      packet.opcode == Opcode::kRcCompareSwap
          ? CompareSwap(target, packet.atomic.compare, packet.atomic.swap_or_add)
          : FetchAdd(target, packet.atomic.swap_or_add);
  atomics_[atomic_next_++ % atomics_.size()] = {packet.psn, original, true};
  PushResponse({.psn = packet.psn,
                .packets = 1,
                .atomic_value = original,
                .msn = msn_ + 1,
                .is_atomic = true});
  ++expected_psn_;
  has_response_end_ = true;
  response_end_ = expected_psn_;
  return Finding::kPass;
}

}  // namespace rdmad::soft
