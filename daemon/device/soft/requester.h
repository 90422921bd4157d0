// The sending half of an RC or UC QP: takes posted WRs, turns them into request packets, and
// completes them in order.
//
// Everything is driven by three PSNs: `una` is the oldest that the peer has not answered, `next_`
// the one to send next, `max_psn_` the one behind the highest ever sent. Going back (after a NAK, a
// missing response, an RNR wait or a timeout) is setting `next_` to `una`; whatever lies between is
// sent again in order. A READ takes one PSN per packet of its response. A long READ goes out as
// several requests, each for what the window has room for; on the wire they are READs like any
// other, and a lost response is asked for again from its PSN on.
//
// A WR that fails completes with its status when all before it are done; then the QP goes to kErr,
// or to kSqe if it is UC, and the rest flushes. On UC nobody answers: what the network has taken
// counts as answered. Binds and local invalidations wait until everything before them is done: then
// no packet is ever made, again or late, with keys that have changed. Messages to a QP of the same
// transport do not become packets: see local_sender.h. The two never mix: a message takes the local
// path only when everything sent before is answered.
//
// Files: requester.cc posts and sends, requester_build.cc makes packets, requester_ack.cc takes
// answers, requester_timer.cc keeps time, requester_keys.cc binds and invalidates.
// Thread: engine, but for construction. Owner: the SoftQp.
// Source: IBTA vol. 1, Transport Layer, "Reliable Service" and "Requester".
#pragma once

#include <array>
#include <cstdint>

#include "daemon/device/soft/ack_timing.h"
#include "daemon/device/soft/local_sender.h"
#include "daemon/device/soft/qp_context.h"
#include "daemon/device/soft/send_queue.h"
#include "daemon/device/soft/send_window.h"
#include "daemon/wire/aeth.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

class Requester {
 public:
  explicit Requester(QpContext& qp);

  // Into kRts: from here on WRs are taken.
  void Start() noexcept;
  // Forgets everything.
  void Reset() noexcept;
  // The peer's address has changed.
  void ForgetPeer() noexcept { local_.ForgetPeer(); }
  // Completes every WR with kWrFlushErr. The state is kErr or kSqe already.
  void Flush() noexcept;
  // From kSqe back into kRts.
  void Resume() noexcept;

  [[nodiscard]] device::PostResult Post(const device::SendWr& wr) noexcept;
  RunResult Run(uint32_t budget_bytes, TimeNs now) noexcept;
  // An ACK, NAK, READ response or atomic answer from the peer.
  void OnResponse(const wire::PacketView& packet, TimeNs now) noexcept;
  void OnTimer(TimeNs now) noexcept;
  // Routers have marked packets of this QP: shrinks the window, once per round trip. False if it
  // did not, or nothing is under way.
  bool OnCongestion() noexcept;
  // The peer on the same transport has posted a receive that this QP waits for.
  bool CutRnrWaitShort() noexcept;
  // Ends the drain if the state is kSqd and nothing is in flight; raises kSqDrained if that was
  // asked for.
  void CheckDrained() noexcept;
  void StartDrain() noexcept { draining_ = true; }
  bool draining() const noexcept { return draining_; }

  wire::Psn next_psn() const noexcept { return max_psn_; }
  const LocalSender& local() const noexcept { return local_; }

  // For the local path.
  SendQueue& queue() noexcept { return queue_; }
  void CompleteHead(device::WcStatus status) noexcept;
  // CompleteHead, then the QP to kErr or kSqe.
  void FailHead(device::WcStatus status, TimeNs now) noexcept;
  // An RNR NAK for the message at the head.
  void OnNotReady(uint8_t timer_code, TimeNs now) noexcept;
  // The message at the head was executed without packets: its PSNs are spent, and it completes.
  void FinishHeadLocally() noexcept;

 private:
  // Where the next packet comes from.
  struct Position {
    uint32_t index = 0;   // WR
    uint32_t packet = 0;  // PSNs of this WR that lie behind
    wire::Psn psn;
    uint64_t cost = 0;           // of everything sent up to here; see send_window.h
    uint64_t last_ack_cost = 0;  // the same at the last packet that asked for an ACK
    uint32_t read_tail = 0;      // READ and atomic requests issued, modulo 2^32
    uint32_t bound_tail = 0;     // READ requests issued for the first time, modulo 2^32
    SgeCursor cursor;            // in the WR's SGEs
  };
  enum class Built : uint8_t { kPacket, kNothing, kError };

  // requester.cc
  bool IsSending() const noexcept {
    return qp_.state() == device::QpState::kRts || qp_.state() == device::QpState::kSqd;
  }
  bool AllAnswered() const noexcept { return una_ == max_psn_; }
  void Enqueue(const device::SendWr& wr, uint8_t flags, uint32_t length_bytes, uint32_t packets,
               device::WcStatus verdict) noexcept;
  SgeList LocalList(uint32_t index, uint32_t access) const noexcept;
  uint64_t CostOf(const SendWqe& wqe, uint32_t first_packet, uint32_t end_packet) const noexcept;
  bool RunLocalOperation(TimeNs now, RunResult* result) noexcept;
  bool SendBatch(uint32_t budget_bytes, TimeNs now, RunResult* result) noexcept;
  Built BuildPacket(Position& at, device::WcStatus* error) noexcept;
  Built BuildData(Position& at, const SendWqe& wqe, device::WcStatus* error) noexcept;
  Built BuildRead(Position& at, const SendWqe& wqe, device::WcStatus* error) noexcept;
  Built BuildAtomic(Position& at, const SendWqe& wqe, device::WcStatus* error) noexcept;
  uint32_t PacketsToBound(const Position& at) const noexcept;
  void AdvancePosition(Position& at, const SendWqe& wqe, uint32_t packets) noexcept;
  void OnSent(const Position& before, const Position& after, TimeNs now) noexcept;
  device::Wc WcFor(const SendWqe& wqe, device::WcStatus status) const noexcept;

  // requester_ack.cc
  bool IsInFlight(wire::Psn psn) const noexcept;
  bool AdvanceTo(wire::Psn end) noexcept;
  void AdvanceOne() noexcept;
  void OnAck(const wire::PacketView& packet, TimeNs now) noexcept;
  void OnReadResponse(const wire::PacketView& packet, TimeNs now) noexcept;
  void OnAtomicAck(const wire::PacketView& packet, TimeNs now) noexcept;
  void OnNak(uint8_t code, bool progress, TimeNs now) noexcept;
  void OnSequenceNak(bool progress, TimeNs now) noexcept;
  device::WcStatus PlaceResponse(const wire::PacketView& packet) noexcept;
  void OnProgress(uint64_t old_acked_cost, TimeNs now) noexcept;
  void EndRnrWait() noexcept;
  void OnGap(TimeNs now) noexcept;
  bool NoteCongestion() noexcept;
  void GoBack(TimeNs now) noexcept;
  // The same, without putting the timeout off.
  void GoBackWithinTimeout(TimeNs now) noexcept;
  void SeekToUna() noexcept;

  // requester_timer.cc
  void RestartClocks(TimeNs now) noexcept;
  void UpdateTimer() noexcept;

  QpContext& qp_;
  SendQueue queue_;
  LocalSender local_;
  SendWindow window_;
  RoundTripEstimator round_trip_;

  wire::Psn una_;
  wire::Psn max_psn_;
  Position next_;
  uint64_t acked_cost_ = 0;
  uint32_t done_count_ = 0;  // Wc::wqe_count

  // READ and atomic requests in flight: the PSN behind each one's last response.
  std::array<wire::Psn, kMaxRdAtomic> read_ends_{};
  uint32_t read_head_ = 0;  // as Position::read_tail
  // Where READ requests ended when they were first issued, as far as `una` has not passed. A
  // repeated request goes on to the end of a first one: a responder knows those and no others. To
  // one that has missed the first, a part of it would be a READ of its own, and the rest another;
  // and rxe 6.1 serves no repeated request that starts before the last one of the same READ.
  std::array<wire::Psn, kMaxRdAtomic> read_bounds_{};
  uint32_t bound_head_ = 0;  // as Position::bound_tail
  // Where the next READ response goes, if it is the one that follows.
  SgeCursor response_cursor_;
  wire::Psn response_psn_;
  bool response_cursor_valid_ = false;

  uint8_t retries_left_ = 0;
  uint8_t rnr_retries_left_ = 0;
  int attempt_ = 0;           // timeouts since the last progress
  int probes_ = 0;            // probes since then
  TimeNs deadline_ = kNever;  // of the timeout
  TimeNs probe_at_ = kNever;
  TimeNs rnr_until_ = 0;  // not 0: waiting
  wire::Psn probe_psn_;   // una when it was probed
  bool probed_ = false;
  wire::Psn recovery_psn_;  // congestion before it belongs to a round that was counted
  wire::Psn gap_psn_;       // una when a response was found missing
  bool gap_seen_ = false;
  wire::Psn went_back_psn_;  // una when it was last gone back to
  TimeNs went_back_at_ = 0;
  bool went_back_ = false;  // ever
  wire::Psn sample_psn_;    // round trip being measured
  TimeNs sample_sent_at_ = 0;
  bool sampling_ = false;
  bool draining_ = false;
};

}  // namespace rdmad::soft
