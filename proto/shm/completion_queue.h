// A completion queue in a ring arena: a CqHeader followed by `capacity` Cqe of 64 bytes (a power of two).
//
// Single producer (the engine), single consumer (the client, under the CQ's lock). The engine never overwrites an
// entry that was not polled: a full queue is an overrun, reported as the CQ's async error, as on an HCA.
//
// Arming: the client stores `armed`, then polls once more (verbs' rule); the engine publishes `tail`, then looks at
// `armed`; both with sequential consistency. If the entry fits what was armed, the engine disarms and writes one
// CompletionEvent (event.h) to the CQ's completion channel.
#pragma once

#include "proto/shm/segment.h"

namespace rdmad::shm {

inline constexpr uint32_t kMaxCqDepth = 1u << 20;

enum CqArm : uint32_t {
  kCqNotArmed = 0,
  kCqArmedAny = 1,
  kCqArmedSolicited = 2,  // solicited receives and errors only
};

struct CqHeader {
  alignas(kCacheLine) std::atomic<uint32_t> tail;   // next entry to fill; written by the engine only
  alignas(kCacheLine) std::atomic<uint32_t> head;   // next entry to poll; written by the client only
  alignas(kCacheLine) std::atomic<uint32_t> armed;  // CqArm; set by the client, cleared by the engine
};
static_assert(sizeof(CqHeader) == 192);

// Bits of Cqe::flags.
inline constexpr uint8_t kCqeWithImm = 1 << 0;
inline constexpr uint8_t kCqeWithInv = 1 << 1;
inline constexpr uint8_t kCqeGrh = 1 << 2;
inline constexpr uint8_t kCqeRecvQueue = 1 << 3;  // the WR came from an RQ or SRQ

struct alignas(kCacheLine) Cqe {
  uint64_t wr_id;
  uint8_t status;      // WcStatus: numbered as ibv_wc_status
  uint8_t opcode;      // WcOpcode: numbered as ibv_wc_opcode
  uint8_t flags;       // kCqe...
  uint8_t reserved0;
  uint32_t byte_len;
  uint32_t imm_be;     // immediate data in network order, or the rkey that was invalidated
  uint32_t qpn;        // the local QP
  uint32_t src_qpn;    // UD
  uint32_t vendor_err;
  uint32_t wqe_count;  // send queues: how many WRs of this SQ are done, this one included; modulo 2^32
  uint32_t qp_cookie;  // the client's own number for the QP, as given at its creation
  uint16_t slid;       // UD on InfiniBand, as the next two: how the sender is reached
  uint8_t service_level;
  uint8_t dlid_path_bits;
  uint8_t reserved1[16];
};
static_assert(sizeof(Cqe) == 64 && offsetof(Cqe, qp_cookie) == 36);

constexpr uint64_t CqBytes(uint32_t capacity) noexcept {
  return sizeof(CqHeader) + uint64_t{capacity} * sizeof(Cqe);
}

}  // namespace rdmad::shm
