// A work queue (SQ, RQ or SRQ) in a ring arena: a WorkQueueHeader followed by `slot_count` slots of 128 bytes.
//
// Single producer (the client, under the queue's lock), single consumer (the engine). `tail` and `head` count slots,
// run free and wrap modulo 2^32; slot_count is a power of two. A WR takes 1 + `extra_slots` consecutive slots:
//   SGEs:   the first 4 stand in the first slot, each following slot holds 8 more;
//   inline: the first 64 bytes stand in the first slot (where the SGEs would be), each following slot holds 128 more.
// The queue's *depth* counts WRs, not slots. A send WR frees its place when its completion, or a later one of the same
// queue, is polled (Cqe::wqe_count); the slots are sized so that `depth` WRs of the largest kind always fit.
#pragma once

#include "proto/shm/segment.h"

namespace rdmad::shm {

inline constexpr uint32_t kSlotBytes = 128;
inline constexpr uint32_t kSgesInFirstSlot = 4;
inline constexpr uint32_t kSgesPerExtraSlot = 8;
inline constexpr uint32_t kInlineInFirstSlot = 64;
inline constexpr uint32_t kMaxSge = 20;             // 1 + 2 slots
inline constexpr uint32_t kMaxInlineBytes = 960;    // 1 + 7 slots
inline constexpr uint32_t kMaxQueueDepth = 32768;   // WRs

struct WorkQueueHeader {
  alignas(kCacheLine) std::atomic<uint32_t> tail;  // next slot to fill; written by the client only
  alignas(kCacheLine) std::atomic<uint32_t> head;  // next slot to read; written by the engine only
};
static_assert(sizeof(WorkQueueHeader) == 128);

// Values of WorkSlot::opcode for send queues. Receive queues ignore the field.
enum class WorkOpcode : uint8_t {
  kSend = 0,
  kSendWithImm = 1,
  kSendWithInv = 2,
  kRdmaWrite = 3,
  kRdmaWriteWithImm = 4,
  kRdmaRead = 5,
  kCompareSwap = 6,
  kFetchAdd = 7,
  kLocalInv = 8,
  kBindMw = 9,
};

// Bits of WorkSlot::flags.
inline constexpr uint8_t kWorkSignaled = 1 << 0;
inline constexpr uint8_t kWorkSolicited = 1 << 1;
inline constexpr uint8_t kWorkFence = 1 << 2;
inline constexpr uint8_t kWorkInline = 1 << 3;

struct WorkSge {
  uint64_t addr;  // the client's own virtual address
  uint32_t length_bytes;
  uint32_t lkey;
};
static_assert(sizeof(WorkSge) == 16);

// kBindMw (type 2 windows) uses the fields so: rkey, the window's key from now on (that of AllocMw or of the last bind,
// with other low 8 bits); bind_lkey, the region below; remote_addr, the first byte; compare_add, the length in bytes (0:
// bound to nothing); swap, access flags.
struct alignas(kCacheLine) WorkSlot {
  uint64_t wr_id;
  uint8_t opcode;       // WorkOpcode
  uint8_t flags;        // kWork...
  uint8_t num_sge;      // 0..kMaxSge; 0 with kWorkInline
  uint8_t extra_slots;  // slots that follow this one
  uint32_t imm_be;      // immediate data in network order, or the key to invalidate (kSendWithInv: the peer's, kLocalInv)
  uint64_t remote_addr;
  uint32_t rkey;
  uint32_t inline_bytes;  // with kWorkInline: 0..kMaxInlineBytes
  uint64_t compare_add;
  uint64_t swap;
  uint32_t ah_handle;     // UD: CreateAhReply::slot_handle
  uint32_t remote_qpn;    // UD
  uint32_t remote_qkey;   // UD; with the high bit set, the QP's own QKey is sent
  uint32_t bind_lkey;     // kBindMw
  WorkSge sges[kSgesInFirstSlot];  // or the first 64 inline bytes
};
static_assert(sizeof(WorkSlot) == kSlotBytes && offsetof(WorkSlot, sges) == 64);

// Slots that a WR needs behind its first one.
constexpr uint32_t ExtraSlotsForSges(uint32_t num_sge) noexcept {
  return num_sge <= kSgesInFirstSlot ? 0
                                     : (num_sge - kSgesInFirstSlot + kSgesPerExtraSlot - 1) / kSgesPerExtraSlot;
}
constexpr uint32_t ExtraSlotsForInline(uint32_t bytes) noexcept {
  return bytes <= kInlineInFirstSlot ? 0 : (bytes - kInlineInFirstSlot + kSlotBytes - 1) / kSlotBytes;
}
static_assert(ExtraSlotsForSges(kMaxSge) == 2 && ExtraSlotsForInline(kMaxInlineBytes) == 7);

constexpr uint64_t WorkQueueBytes(uint32_t slot_count) noexcept {
  return sizeof(WorkQueueHeader) + uint64_t{slot_count} * kSlotBytes;
}

}  // namespace rdmad::shm
