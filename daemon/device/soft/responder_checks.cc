// The responder's checks, in the order in which a request passes them.
#include "daemon/device/soft/responder.h"

namespace rdmad::soft {

using wire::Operation;
using wire::PacketView;

namespace {

bool TakesReceive(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  if (info.operation == Operation::kSend) return info.starts_message();
  return info.operation == Operation::kWrite && info.has(wire::kHasImmDt);
}

}  // namespace

// Whether the opcode may follow the one before.
Finding Responder::CheckSequence(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const bool starts = info.starts_message();
  if (starts != (message_ == Message::kNone)) return Finding::kInvalidRequest;
  if (starts) return Finding::kPass;
  const Message belongs_to = info.operation == Operation::kSend ? Message::kSend : Message::kWrite;
  return belongs_to == message_ ? Finding::kPass : Finding::kInvalidRequest;
}

bool Responder::MayDo(Operation operation) const noexcept {
  switch (operation) {
    case Operation::kSend:
      return true;
    case Operation::kWrite:
      return (qp_.attr.access_flags & device::kAccessRemoteWrite) != 0;
    case Operation::kReadRequest:
      return (qp_.attr.access_flags & device::kAccessRemoteRead) != 0 &&
             qp_.attr.max_dest_rd_atomic > 0;
    case Operation::kAtomicRequest:
      return (qp_.attr.access_flags & device::kAccessRemoteAtomic) != 0 &&
             qp_.attr.max_dest_rd_atomic > 0;
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      break;
  }
  return false;
}

// Whether this QP serves such requests at all.
Finding Responder::CheckOperation(const PacketView& packet) noexcept {
  return MayDo(packet.info().operation) ? Finding::kPass : Finding::kInvalidRequest;
}

// A receive for what will complete one; room in the queue for what wants a response.
Finding Responder::CheckResources(const PacketView& packet) noexcept {
  if (TakesReceive(packet)) return TakeReceive();
  const Operation operation = packet.info().operation;
  if ((operation == Operation::kReadRequest || operation == Operation::kAtomicRequest) &&
      !HasRoomForResponse()) {
    return Finding::kInvalidRequest;  // the peer has more in flight than was agreed
  }
  return Finding::kPass;
}

Finding Responder::CheckLength(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const size_t bytes = packet.payload.size();
  if (info.has_payload()) {
    // First and middle packets are full, the last one of several is not empty.
    const bool ends = info.ends_message();
    if (ends ? bytes > qp_.mtu_bytes : bytes != qp_.mtu_bytes) return Finding::kInvalidRequest;
    if (info.position == wire::Position::kLast && bytes == 0) return Finding::kInvalidRequest;
  }
  switch (info.operation) {
    case Operation::kSend:
      if (received_bytes_ + bytes > kMaxMessageBytes) return Finding::kInvalidRequest;
      if (received_bytes_ + bytes > current_.capacity_bytes) return Finding::kReceiveTooShort;
      return Finding::kPass;
    case Operation::kWrite: {
      if (info.starts_message()) {
        if (packet.reth.dma_length_bytes > kMaxMessageBytes) return Finding::kInvalidRequest;
        write_va_ = packet.reth.va;
        write_rkey_ = packet.reth.rkey.value();
        write_length_bytes_ = write_left_bytes_ = packet.reth.dma_length_bytes;
      }
      const bool fits =
          info.ends_message() ? bytes == write_left_bytes_ : bytes < write_left_bytes_;
      return fits ? Finding::kPass : Finding::kInvalidRequest;
    }
    case Operation::kReadRequest:
      return packet.reth.dma_length_bytes > kMaxMessageBytes ? Finding::kInvalidRequest
                                                             : Finding::kPass;
    case Operation::kAtomicRequest:
      return packet.atomic.va % sizeof(uint64_t) != 0 ? Finding::kInvalidRequest : Finding::kPass;
    case Operation::kReadResponse:
    case Operation::kAck:
    case Operation::kAtomicAck:
    case Operation::kCongestion:
      break;
  }
  return Finding::kInvalidRequest;
}

// The whole range at the start of a message, so that a bad one changes nothing. Zero-length
// operations name no memory (IBTA vol. 1, "R_Key" checks do not apply to them). A key to invalidate
// must be a window's that is bound to this QP.
Finding Responder::CheckKey(const PacketView& packet) noexcept {
  const wire::OpcodeInfo& info = packet.info();
  const auto holds = [this](uint64_t va, wire::Rkey rkey, uint32_t bytes, uint32_t access) {
    return bytes == 0 || Translate(rkey.value(), va, bytes, access) != nullptr;
  };
  if (info.has(wire::kHasIeth) && !MayInvalidate(packet.invalidate_rkey.value())) {
    return Finding::kInvalidRequest;
  }
  bool good = true;
  if (info.operation == Operation::kWrite && info.starts_message()) {
    good = holds(packet.reth.va, packet.reth.rkey, packet.reth.dma_length_bytes,
                 device::kAccessRemoteWrite);
  } else if (info.operation == Operation::kReadRequest) {
    good = holds(packet.reth.va, packet.reth.rkey, packet.reth.dma_length_bytes,
                 device::kAccessRemoteRead);
  } else if (info.operation == Operation::kAtomicRequest) {
    good =
        holds(packet.atomic.va, packet.atomic.rkey, sizeof(uint64_t), device::kAccessRemoteAtomic);
  }
  return good ? Finding::kPass : Finding::kRemoteAccess;
}

}  // namespace rdmad::soft
