// The words of verbs: work requests, completions, states, and what a device says about itself.
//
// Every number is that of infiniband/verbs.h and rdma/rdma_cma.h (ibv_wc_status, ibv_wc_opcode, ibv_qp_state,
// ibv_access_flags, ibv_mtu, rdma_cm_event_type, ...), so code that moves between both needs no table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace rdmad {

class AddressHandle;
struct MwBind;

// ibv_access_flags.
enum Access : uint32_t {
  kAccessLocalWrite = 1 << 0,
  kAccessRemoteWrite = 1 << 1,
  kAccessRemoteRead = 1 << 2,
  kAccessRemoteAtomic = 1 << 3,
  kAccessMwBind = 1 << 4,  // memory windows may be bound to the region
};

enum class QpType : uint8_t { kRc = 2, kUc = 3, kUd = 4 };

enum class QpState : uint8_t { kReset, kInit, kRtr, kRts, kSqd, kSqe, kErr };

// A path MTU as its code; MtuBytes says how many bytes of payload one packet carries.
enum class Mtu : uint8_t { k256 = 1, k512, k1024, k2048, k4096 };
constexpr uint32_t MtuBytes(Mtu mtu) noexcept { return 128u << static_cast<unsigned>(mtu); }

// rdma_port_space.
enum class PortSpace : uint16_t { kTcp = 0x0106, kUdp = 0x0111, kIb = 0x013f };

// How calls that wait do so.
enum class WaitStyle : uint8_t {
  kBlocking,  // sleeps on a descriptor
  kPolled,    // looks at the queues again and again, giving up the processor in between; lowest latency
};

// One piece of local memory. `addr` is an address of this process.
struct Sge {
  uint64_t addr = 0;
  uint32_t length_bytes = 0;
  uint32_t lkey = 0;
};

// ibv_wr_opcode, in rdmad's own order.
enum class WrOpcode : uint8_t {
  kSend = 0,
  kSendWithImm = 1,
  kSendWithInv = 2,
  kRdmaWrite = 3,
  kRdmaWriteWithImm = 4,
  kRdmaRead = 5,
  kCompareSwap = 6,
  kFetchAdd = 7,
  kLocalInv = 8,  // takes a memory window's key back
  kBindMw = 9,
};

// ibv_send_flags.
enum SendFlags : uint32_t {
  kSendFence = 1 << 0,      // starts only when all earlier reads and atomics of this queue are done
  kSendSignaled = 1 << 1,   // makes a Wc when it succeeds; errors always make one
  kSendSolicited = 1 << 2,  // wakes a peer that waits for solicited completions
  kSendInline = 1 << 3,     // the bytes are copied while posting: no lkey needed, memory free at once
};

// `flags` are SendFlags. An RC QP has every operation, a UC QP all but reads and atomics, a UD QP sends. What `sges`, `ah` and `bind`
// point to is looked at only during the call that posts.
struct SendWr {
  uint64_t wr_id = 0;
  WrOpcode opcode = WrOpcode::kSend;
  uint32_t flags = kSendSignaled;
  std::span<const Sge> sges;
  // Immediate data in network order; with kSendWithInv the peer's key, with kLocalInv our own, that stops to be valid.
  uint32_t imm_be = 0;
  uint64_t remote_addr = 0;  // reads, writes; atomics: a multiple of 8
  uint32_t rkey = 0;
  uint64_t compare_add = 0;  // what kCompareSwap compares with, what kFetchAdd adds; host order
  uint64_t swap = 0;         // kCompareSwap
  const MwBind* bind = nullptr;  // kBindMw
  // UD: where the datagram goes. The handle itself must exist until the WR is done.
  const AddressHandle* ah = nullptr;
  uint32_t remote_qpn = 0;
  uint32_t remote_qkey = 0;  // with the high bit set, the QP's own QKey is sent instead
};

// On a UD QP the first kGrhBytes of a receive are for the GRH, also where there is none (see kWcGrh).
struct RecvWr {
  uint64_t wr_id = 0;
  std::span<const Sge> sges;
};

// ibv_wc_status.
enum class WcStatus : uint8_t {
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

// "remote access error", for a person. Never null.
const char* WcStatusString(WcStatus status) noexcept;
// OK for kSuccess; otherwise a Status that says in words what happened to the WR and what it usually means.
absl::Status WcStatusToStatus(WcStatus status);

// ibv_wc_opcode.
enum class WcOpcode : uint8_t {
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

// Bits of Wc::flags: ibv_wc_flags.
enum WcFlags : uint32_t {
  kWcGrh = 1 << 0,      // UD: the first kGrhBytes of the receive say where the datagram came from
  kWcWithImm = 1 << 1,
  kWcWithInv = 1 << 3,  // the peer took back one of our windows' keys
};

// Bytes of a UD receive that belong to the GRH; they count in Wc::byte_len. With IPv4 the last 20 of them hold the IP header.
inline constexpr uint32_t kGrhBytes = 40;

// The fate of one WR. With a status other than kSuccess only wr_id, status, qpn and vendor_err mean anything.
struct Wc {
  uint64_t wr_id;
  WcStatus status;
  WcOpcode opcode;
  uint32_t flags;     // WcFlags
  uint32_t byte_len;  // received (UD: with the GRH), or read
  uint32_t imm_be;    // immediate data in network order, or the key that was invalidated
  uint32_t qpn;       // the local QP
  uint32_t src_qpn;   // UD: the sender's
  uint32_t vendor_err;
  uint16_t slid;      // UD on InfiniBand, as the next two
  uint8_t service_level;
  uint8_t dlid_path_bits;
};

// ibv_qp_cap. After creation it holds what was granted: each at least what was asked.
struct QpCap {
  uint32_t max_send_wr = 16;
  uint32_t max_recv_wr = 16;
  uint32_t max_send_sge = 1;
  uint32_t max_recv_sge = 1;
  uint32_t max_inline_bytes = 0;
};

// rdma_conn_param. Defaults are what a service on one network wants: retry for ever while the peer is not ready.
struct ConnParam {
  std::vector<uint8_t> private_data;  // at most 56 bytes to connect, 196 to accept, 148 to reject; kUdp: 180, 136, 136
  uint8_t responder_resources = 255;  // reads and atomics that the peer may have outstanding with us; 255: what the
  uint8_t initiator_depth = 255;      // device can; and those that we may have outstanding with the peer
  uint8_t flow_control = 1;
  uint8_t retry_count = 7;      // 0..7, for lost packets
  uint8_t rnr_retry_count = 7;  // 0..7 when no receive is posted; 7: for ever
  // How long a peer that finds no receive posted is told to wait before it tries again, by the code of ibv_modify_qp(3): 10
  // is 0.32 ms. 0 leaves it to rdma_cm, which says 655 ms.
  uint8_t min_rnr_timer = 10;
  bool srq = false;   // follows from the QP, where the id has one
  uint32_t qpn = 0;   // only for a QP that the application moves by itself
  // Of that QP, RC or UC; if left out, RC to connect, and to accept what the peer has, which kConnectRequest tells.
  std::optional<QpType> qp_type;
  uint32_t qkey = 0;  // UD; 0: kUdpQkey
};

// The QKey of QPs of the UDP port space (RDMA_UDP_QKEY).
inline constexpr uint32_t kUdpQkey = 0x01234567;
// The destination QPN of datagrams to a multicast group.
inline constexpr uint32_t kMulticastQpn = 0xffffff;

// ibv_ah_attr. On Ethernet (RoCE) the first five are all there is; InfiniBand has all of them.
struct AddressHandleAttr {
  std::array<uint8_t, 16> dest_gid = {};  // the IP address; IPv4 as ::ffff:a.b.c.d
  uint32_t sgid_index = 0;                // our address: an index of DeviceInfo::gids
  uint32_t flow_label = 0;                // 20 bits, IPv6
  uint8_t hop_limit = 64;
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint16_t dlid = 0;
  uint8_t src_path_bits = 0;
  bool is_global = true;  // has a GRH: the first five count

  friend bool operator==(const AddressHandleAttr&, const AddressHandleAttr&) = default;
};

// Bits of QpAttr::mask: ibv_qp_attr_mask.
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

// ibv_qp_attr. `mask` says which fields count in a modify; a query fills all.
struct QpAttr {
  uint32_t mask = 0;
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  // As on an HCA: at most the port's active_mtu, else the modify fails. What the way to the peer carries, only the CM
  // finds out; whoever moves a QP by hand and says too much sends what gets lost (kRetryExcErr).
  Mtu path_mtu = Mtu::k1024;
  uint32_t qkey = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint32_t dest_qpn = 0;
  uint32_t access_flags = 0;
  AddressHandleAttr ah;
  uint16_t pkey_index = 0;
  uint8_t max_rd_atomic = 0;
  uint8_t max_dest_rd_atomic = 0;
  uint8_t min_rnr_timer = 0;
  uint8_t port_num = 1;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;
  bool en_sqd_async_notify = false;  // with Rts to Sqd: GetAsyncEvent is to tell of kAsyncSqDrained
  bool sq_draining = false;          // of a query in state Sqd: what had begun is not done
};

// ibv_gid_entry.
struct Gid {
  uint32_t index = 0;
  std::array<uint8_t, 16> raw = {};
  std::string text;  // the IP address that it stands for
  uint32_t type = 2;             // ibv_gid_type: 0 InfiniBand, 2 RoCE v2
  uint32_t interface_index = 0;  // of the interface with the address; 0: none
};

// Bits of DeviceInfo::device_cap_flags: ibv_device_cap_flags, those that a device may have here. No device lets SRQs be resized
// (1 << 13), counts several completions before it tells (1 << 14), or has windows of type 1 (1 << 17), XRC (1 << 20), or raw
// packets; nor is there a bit for what no device has either: resized CQs, regions that are registered again, zero-based ones.
enum DeviceCap : uint32_t {
  kDeviceBadPkeyCounter = 1 << 1,     // PortInfo::bad_pkey_count counts
  kDeviceBadQkeyCounter = 1 << 2,     // PortInfo::qkey_violation_count counts
  kDeviceCurrentStateMod = 1 << 7,    // kQpAttrCurState
  kDevicePortActiveEvent = 1 << 10,   // kAsyncPortActive
  kDeviceSysImageGuid = 1 << 11,
  kDeviceRnrNak = 1 << 12,            // RC answers RNR NAK for want of a receive
  kDeviceMemMgtExtensions = 1 << 21,  // SEND with invalidate, local invalidate
  kDeviceMemWindowType2A = 1 << 23,
  kDeviceMemWindowType2B = 1 << 24,
};

// What of ibv_port_attr is not in DeviceInfo: of the device's one port, number 1. Numbers are coded as there.
struct PortInfo {
  uint8_t phys_state = 3;  // 3 disabled, 5 link up
  // On the soft device: of the interface, as adapters of its speed say it; 1 and 1 where it does not tell.
  uint8_t active_width = 1;
  uint8_t active_speed = 1;
  uint32_t gid_table_length = 0;
  uint32_t cap_flags = 0;  // ibv_port_cap_flags
  uint16_t cap_flags2 = 0;
  uint32_t bad_pkey_count = 0;
  uint32_t qkey_violation_count = 0;
  std::vector<uint16_t> pkeys;  // by index (ibv_query_pkey)
  // Of InfiniBand; 0 on RoCE.
  uint16_t sm_lid = 0;
  uint8_t sm_sl = 0;
  uint8_t subnet_timeout = 0;
  uint8_t init_type_reply = 0;
  uint8_t max_vl_num = 0;
  uint8_t flags = 0;
};

// What GetDevices tells about one device: ibv_device_attr and ibv_port_attr. Limits are kept: asking for more is InvalidArgument.
// What those have besides (raw QPs, RDD, FMR, and all that ibv_query_device_ex adds) is 0 on every device, phys_port_cnt is 1.
struct DeviceInfo {
  uint32_t index = 0;  // names the device in other calls; never reused while the daemon runs
  std::string name;    // "soft0", "mlx5_0"
  std::string kind;    // "soft" or "verbs"
  std::string netdev;  // interface, or empty
  uint64_t node_guid = 0;
  uint32_t port_state = 0;  // ibv_port_state: 4 is active
  Mtu active_mtu = Mtu::k1024;
  Mtu max_mtu = Mtu::k4096;
  std::vector<Gid> gids;
  uint32_t max_qp = 0;
  uint32_t max_qp_wr = 0;
  uint32_t max_sge = 0;
  uint32_t max_inline_bytes = 0;
  uint32_t max_cq = 0;
  uint32_t max_cqe = 0;
  uint32_t max_mr = 0;
  uint64_t max_mr_bytes = 0;
  uint32_t max_msg_bytes = 0;
  uint32_t max_qp_rd_atom = 0;
  uint32_t max_pd = 0;
  uint32_t max_srq = 0;
  uint32_t max_srq_wr = 0;
  uint32_t max_srq_sge = 0;
  uint32_t max_ah = 0;
  uint32_t max_mw = 0;
  uint32_t max_mcast_groups = 0;
  uint32_t max_mcast_qps = 0;      // per group
  uint32_t atomic_capability = 0;  // ibv_atomic_cap: 0 none, 1 among this device's own atomics, 2 with the CPU's too
  uint32_t num_comp_vectors = 1;   // see CompletionQueue::Create
  uint32_t link_layer = 2;         // IBV_LINK_LAYER_*: 1 InfiniBand, 2 Ethernet
  uint16_t lid = 0;                // of an InfiniBand port, as the next
  uint8_t lmc = 0;
  std::string fw_ver;              // empty: there is no firmware
  uint64_t sys_image_guid = 0;
  uint64_t page_size_cap = 0;
  uint32_t vendor_id = 0;  // an OUI; 0xffffff where there is no vendor
  uint32_t vendor_part_id = 0;
  uint32_t hw_ver = 0;
  uint32_t device_cap_flags = 0;     // DeviceCap
  uint32_t max_sge_rd = 0;           // of a READ
  uint32_t max_res_rd_atom = 0;      // as max_qp_rd_atom, of all QPs
  uint32_t max_qp_init_rd_atom = 0;  // as requester
  uint32_t max_total_mcast_qps = 0;
  uint32_t max_pkeys = 0;
  uint8_t local_ca_ack_delay = 0;  // 4.096 us * 2^this
  PortInfo port;
};

}  // namespace rdmad
