// What a connection's ends write down of what they post, and the terms that both keep to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/device/types.h"
#include "tests/sim/arena.h"

namespace rdmad::sim {

using device::TimeNs;

// A connection's terms, the same for both ends.
struct Terms {
  device::Mtu mtu = device::Mtu::k256;
  uint32_t max_message_bytes = 0;
  uint32_t send_depth = 0;
  uint32_t recv_depth = 0;
  uint32_t max_sge = 0;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;
  uint8_t min_rnr_timer = 0;
  uint8_t rd_atomic = 0;
  uint8_t dest_rd_atomic = 0;
  uint32_t access = 0;
  uint32_t windows = 0;  // memory windows of each end
  bool signal_all = false;
  bool naughty = false;       // some WRs ask for trouble
  double receive_chance = 1;  // how eagerly receives are posted
};

inline constexpr uint32_t kFullAccess = device::kAccessAll & ~device::kAccessMwBind;

// What the world may be blamed for.
struct Excuses {
  bool loses_some = false;  // at any time in this simulation
  bool loses_much = false;  // more than eight tries bear
};

// What a WR does that it should not, so that it must fail.
enum class Mischief : uint8_t {
  kNone,
  kBadLkey,
  kBadRkey,
  kBeyondRegion,  // or beyond the window
  kMisaligned,
  kTooLong,
  kStaleKey,  // of a window that was invalidated before
  kNoRight,   // which the window does not give
  kBadBind,
};

inline constexpr size_t kNoGrant = SIZE_MAX;

struct SendRecord {
  device::WrOpcode opcode{};
  uint8_t flags = 0;
  Mischief mischief = Mischief::kNone;
  uint32_t bytes = 0;
  uint32_t imm_be = 0;
  uint32_t remote_offset = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  std::vector<Piece> pieces;
  std::vector<std::byte> content;  // of a SEND or WRITE
  uint32_t cell = Arena::kNoCell;
  uint32_t receive = UINT32_MAX;  // which of the peer's it takes, if it takes one
  // Of the peer's windows, by which it goes or which it invalidates; of a bind or local
  // invalidation, this end's.
  size_t grant = kNoGrant;

  bool takes_receive() const { return receive != UINT32_MAX; }
  bool is_send() const {
    return opcode == device::WrOpcode::kSend || opcode == device::WrOpcode::kSendWithImm ||
           opcode == device::WrOpcode::kSendWithInv;
  }
  bool is_write() const {
    return opcode == device::WrOpcode::kRdmaWrite || opcode == device::WrOpcode::kRdmaWriteWithImm;
  }
  bool is_read() const { return opcode == device::WrOpcode::kRdmaRead; }
  bool is_atomic() const {
    return opcode == device::WrOpcode::kCompareSwap || opcode == device::WrOpcode::kFetchAdd;
  }
  // Changes keys of this end.
  bool is_local() const {
    return opcode == device::WrOpcode::kBindMw || opcode == device::WrOpcode::kLocalInv;
  }
  bool has_imm() const {
    return opcode == device::WrOpcode::kSendWithImm ||
           opcode == device::WrOpcode::kRdmaWriteWithImm;
  }
  // That it needs at the peer's QP, and by its window.
  uint32_t right() const {
    if (is_write()) return device::kAccessRemoteWrite;
    if (is_read()) return device::kAccessRemoteRead;
    return is_atomic() ? uint32_t{device::kAccessRemoteAtomic} : 0;
  }
};

// What a word holds after the atomic of `record`, executed on `value`.
inline uint64_t AfterAtomic(const SendRecord& record, uint64_t value) {
  if (record.opcode == device::WrOpcode::kFetchAdd) return value + record.compare_add;
  return value == record.compare_add ? record.swap : value;
}

struct RecvRecord {
  std::vector<Piece> pieces;
  uint64_t capacity = 0;
  uint32_t cell = Arena::kNoCell;
  bool broken = false;  // names a key that does not hold
};

}  // namespace rdmad::sim
