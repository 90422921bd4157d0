// The words that every device and its users share: work requests, completions, QP attributes.
//
// Numbers that reach applications follow infiniband/verbs.h (ibv_wc_status, ibv_wc_opcode, ibv_qp_state, ibv_access_flags,
// ibv_mtu, ibv_event_type), so nobody translates on the way; rooms other than device/verbs never include that header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/ip_address.h"
#include "proto/shm/work_queue.h"

namespace rdmad::device {

// Monotonic time in nanoseconds; an argument everywhere, read once per engine turn.
using TimeNs = int64_t;
inline constexpr TimeNs kNever = INT64_MAX;

enum class QpType : uint8_t { kRc = 2, kUc = 3, kUd = 4 };  // ibv_qp_type
enum class QpState : uint8_t { kReset, kInit, kRtr, kRts, kSqd, kSqe, kErr };  // ibv_qp_state
enum class Mtu : uint8_t { k256 = 1, k512, k1024, k2048, k4096 };  // ibv_mtu
constexpr uint32_t MtuBytes(Mtu mtu) noexcept { return 128u << static_cast<unsigned>(mtu); }

// ibv_device_cap_flags, those alone that mean something for what an application has through us. There is no bit for CQs that
// can be resized and regions that can be registered again: no device has that here.
enum DeviceCap : uint32_t {
  kCapBadPkeyCounter = 1 << 1,       // PortAttr::bad_pkey_count counts
  kCapBadQkeyCounter = 1 << 2,       // PortAttr::qkey_violation_count counts
  kCapCurrentStateMod = 1 << 7,      // kQpAttrCurState is looked at
  kCapPortActiveEvent = 1 << 10,
  kCapSysImageGuid = 1 << 11,
  kCapRnrNak = 1 << 12,              // RC answers RNR NAK for want of a receive
  kCapMemMgtExtensions = 1 << 21,    // what programs have of it: SEND with invalidate, local invalidate
  kCapMemWindowType2A = 1 << 23,
  kCapMemWindowType2B = 1 << 24,
};
inline constexpr uint32_t kCapAll = kCapBadPkeyCounter | kCapBadQkeyCounter | kCapCurrentStateMod |
                                    kCapPortActiveEvent | kCapSysImageGuid | kCapRnrNak |
                                    kCapMemMgtExtensions | kCapMemWindowType2A | kCapMemWindowType2B;

enum class PortState : uint8_t { kNop, kDown, kInit, kArmed, kActive, kActiveDefer };  // ibv_port_state
// Source: IBTA vol. 1, PortInfo, PortPhysicalState.
enum class PhysState : uint8_t { kSleep = 1, kPolling, kDisabled, kTraining, kLinkUp, kErrorRecovery, kTest };
enum class LinkLayer : uint8_t { kUnspecified, kInfiniband, kEthernet };  // IBV_LINK_LAYER_...
enum class GidType : uint8_t { kInfiniband, kRoceV1, kRoceV2 };          // ibv_gid_type

// active_width and active_speed of ibv_port_attr: lanes (code: 1 is 1, 2 is 4, 4 is 8, 8 is 12, 16 is 2), and what one
// carries (code: 1 is 2.5 Gbit/s, 2 is 5, 4 is 10, 8 is 10.3, 16 is 14, 32 is 25, 64 is 50, 128 is 100).
struct LinkRate {
  uint8_t width = 1;
  uint8_t speed = 1;

  friend bool operator==(const LinkRate&, const LinkRate&) = default;
};

// ibv_access_flags.
enum Access : uint32_t {
  kAccessLocalWrite = 1 << 0,
  kAccessRemoteWrite = 1 << 1,
  kAccessRemoteRead = 1 << 2,
  kAccessRemoteAtomic = 1 << 3,
  kAccessMwBind = 1 << 4,
};
inline constexpr uint32_t kAccessAll =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic | kAccessMwBind;

using WrOpcode = shm::WorkOpcode;
using Sge = shm::WorkSge;

// Inline payload lies in the client's ring and may wrap there: at most three pieces.
struct InlineData {
  std::array<std::span<const std::byte>, 3> pieces;
};

class Ah;
enum class WcStatus : uint8_t;

// A checked copy of what the client posted. `sges` and `inline_data` are valid only during PostSend(); the bytes that
// `inline_data` points to stay in place (though the client may scribble on them) until the WR completes.
struct SendWr {
  uint64_t wr_id;
  WrOpcode opcode;
  uint8_t flags;  // shm::kWork...
  std::span<const Sge> sges;
  InlineData inline_data;
  uint32_t inline_bytes;
  uint32_t imm_be;  // or the key to invalidate
  uint64_t remote_addr;
  uint32_t rkey;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t bind_lkey;  // kBindMw; see shm::WorkSlot for the meaning of the others
  const Ah* ah;        // UD: of the same PD; valid only during the post. Null: the client named none that exists
  uint32_t remote_qpn;
  uint32_t remote_qkey;
  // Not kSuccess: no such WR can be executed. It takes a place and fails so when those before it are done; a QP in error
  // flushes it like any other. Only `wr_id` counts then.
  WcStatus verdict{};
};

struct RecvWr {
  uint64_t wr_id;
  std::span<const Sge> sges;  // valid only during the post
};

// Outcome of a post. Nothing was queued unless kOk.
enum class PostResult : uint8_t { kOk, kQueueFull, kTooManySges, kBadOpcode, kWrongState, kTooLong };

enum class WcStatus : uint8_t {  // ibv_wc_status
  kSuccess = 0,
  kLocLenErr = 1,
  kLocQpOpErr = 2,
  kLocProtErr = 4,
  kWrFlushErr = 5,
  kMwBindErr = 6,
  kBadRespErr = 7,
  kLocAccessErr = 8,
  kRemInvReqErr = 9,
  kRemAccessErr = 10,
  kRemOpErr = 11,
  kRetryExcErr = 12,
  kRnrRetryExcErr = 13,
  kRemAbortErr = 16,
  kFatalErr = 19,
  kRespTimeoutErr = 20,
  kGeneralErr = 21,
};

enum class WcOpcode : uint8_t {  // ibv_wc_opcode
  kSend = 0,
  kRdmaWrite = 1,
  kRdmaRead = 2,
  kCompSwap = 3,
  kFetchAdd = 4,
  kBindMw = 5,
  kLocalInv = 6,
  kRecv = 128,
  kRecvRdmaWithImm = 129,
};

struct Wc {
  uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;
  uint8_t flags;  // shm::kCqe...
  bool solicited;  // a receive whose packet had the solicited-event bit
  uint32_t byte_len;
  uint32_t imm_be;
  uint32_t qpn;
  uint32_t src_qpn;
  uint32_t vendor_err;
  uint32_t wqe_count;  // send queues: WRs of this SQ that are done, this one included; modulo 2^32
  uint32_t qp_cookie;
  uint16_t slid;  // UD on InfiniBand, as the next two
  uint8_t service_level;
  uint8_t dlid_path_bits;
};

// Where a device puts completions. Called on the engine thread; must not call back into the device.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void OnCompletion(const Wc& wc) noexcept = 0;
  // The hardware has lost completions of the CQ, or cannot write them any more (ibv's CQ_ERR).
  virtual void OnError() noexcept {}
};

enum class AsyncEventType : uint32_t {  // ibv_event_type
  kCqErr = 0,
  kQpFatal = 1,
  kQpReqErr = 2,
  kQpAccessErr = 3,
  kCommEst = 4,
  kSqDrained = 5,
  kDeviceFatal = 8,
  kPortActive = 9,
  kPortErr = 10,
  kLidChange = 11,
  kPkeyChange = 12,
  kSrqErr = 14,
  kSrqLimitReached = 15,
  kQpLastWqeReached = 16,
  kGidChange = 18,
};

// Bits of QpAttr::mask, numbered as ibv_qp_attr_mask.
enum QpAttrMask : uint32_t {
  kQpAttrState = 1 << 0,
  kQpAttrCurState = 1 << 1,
  kQpAttrEnSqdAsyncNotify = 1 << 2,
  kQpAttrAccessFlags = 1 << 3,
  kQpAttrPkeyIndex = 1 << 4,
  kQpAttrPort = 1 << 5,
  kQpAttrQkey = 1 << 6,
  kQpAttrAv = 1 << 7,
  kQpAttrPathMtu = 1 << 8,
  kQpAttrTimeout = 1 << 9,
  kQpAttrRetryCnt = 1 << 10,
  kQpAttrRnrRetry = 1 << 11,
  kQpAttrRqPsn = 1 << 12,
  kQpAttrMaxQpRdAtomic = 1 << 13,
  kQpAttrMinRnrTimer = 1 << 15,
  kQpAttrSqPsn = 1 << 16,
  kQpAttrMaxDestRdAtomic = 1 << 17,
  kQpAttrDestQpn = 1 << 20,
};
// Those that RoCE knows; others (alternate paths, path migration) are refused.
inline constexpr uint32_t kQpAttrAll =
    kQpAttrState | kQpAttrCurState | kQpAttrEnSqdAsyncNotify | kQpAttrAccessFlags | kQpAttrPkeyIndex | kQpAttrPort |
    kQpAttrQkey | kQpAttrAv | kQpAttrPathMtu | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry | kQpAttrRqPsn |
    kQpAttrMaxQpRdAtomic | kQpAttrMinRnrTimer | kQpAttrSqPsn | kQpAttrMaxDestRdAtomic | kQpAttrDestQpn;

// ibv_ah_attr: the peer's address and which of the device's own addresses to send from. On RoCE the first five are all
// there is, a LID means nothing (as to ibv_create_ah) and without is_global there is no address. On InfiniBand `dest` is
// the peer's GID, and the rest counts.
struct AddressVector {
  IpAddress dest;
  uint32_t sgid_index = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
  uint32_t flow_label = 0;
  uint16_t dlid = 0;
  uint8_t service_level = 0;
  uint8_t src_path_bits = 0;
  bool is_global = true;
};

// ibv_qp_attr. Only the fields named in `mask` count in a modify; all are filled by a query.
struct QpAttr {
  uint32_t mask = 0;
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  Mtu path_mtu = Mtu::k1024;
  uint32_t qkey = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint32_t dest_qpn = 0;
  uint32_t access_flags = 0;
  AddressVector av;
  uint16_t pkey_index = 0;
  uint8_t max_rd_atomic = 0;       // outstanding reads and atomics as requester
  uint8_t max_dest_rd_atomic = 0;  // as responder
  uint8_t min_rnr_timer = 0;       // code, 0 = 655.36 ms
  uint8_t port = 1;
  uint8_t timeout = 0;     // 4.096 us * 2^timeout; 0: wait for ever
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;   // 7: for ever
  bool en_sqd_async_notify = false;  // into kSqd: kSqDrained is wanted
  bool sq_draining = false;          // query: in kSqd, what had begun is not done
};

// Outcome of a modify, in the terms of ibv_modify_qp: everything but kOk is EINVAL and changes nothing.
enum class QpResult : uint8_t { kOk, kIllegalTransition, kMissingAttr, kExtraAttr, kBadValue, kGone };

// ibv_qp_cap.
struct QpCap {
  uint32_t max_send_wr = 0;
  uint32_t max_recv_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_recv_sge = 0;
  uint32_t max_inline_bytes = 0;
};

}  // namespace rdmad::device
