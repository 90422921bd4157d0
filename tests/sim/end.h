// One end of an RC connection in the simulation: a QP, its memory, everything posted to it, and the
// model of what may become of that.
//
// The life of a connection is an epoch: from Connect() to Close(). Within it each WR has one fate,
// in queue order, and success follows from nothing but execution: the k-th message that takes a
// receive must be what the k-th receive holds, what a WRITE brought must stand at its place when
// the WRITE completes, a READ must have brought what stood there then, or what a WRITE posted after
// it (and not fenced) brings. A failure needs a cause: a WR that asks for it, a network or a peer
// that was bad enough.
//
// Files: end.cc makes and ends QPs, end_post.cc posts, end_windows.cc posts what concerns memory
// windows, end_check.cc judges completions, end_cause.cc failures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/transport.h"
#include "tests/sim/arena.h"
#include "tests/sim/random.h"
#include "tests/sim/records.h"
#include "tests/sim/shared_receives.h"
#include "tests/sim/verdict.h"
#include "tests/sim/windows.h"

namespace rdmad::sim {

class End {
 public:
  // `transport`, `shared`, `verdict` and `excuses` outlive the end; `name` is for traces. With
  // `shared` (else null) its receives come from there.
  End(std::string name, soft::Transport& transport, const IpAddress& address, const Terms& terms,
      SharedReceives* shared, const Excuses& excuses, Random& random, Verdict& verdict);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // end.cc. The peer may be the end itself.
  void SetPeer(End& peer) { peer_ = &peer; }
  void Create(uint32_t qpn, TimeNs now);  // QP and regions, as far as there are none
  void ToRtr(uint32_t rq_psn, TimeNs now);
  void ToRts(uint32_t sq_psn, TimeNs now);
  void Fail(TimeNs now);     // to kErr: everything flushes
  void Reset(TimeNs now);    // forgets
  void Destroy(TimeNs now);  // forgets
  void StartDrain(TimeNs now);
  void EndDrain(TimeNs now);
  void Withdraw(bool target, TimeNs now);  // a region, while it may be in use
  void OnDrained();
  void OnLastWqe();
  void OnAccessError();
  // The epoch is over at both ends: all has its fate. First for both, then compare, then renew.
  void Close(TimeNs now);
  void CompareMemory();
  void StartEpoch();

  // end_post.cc. False if nothing more can be posted now.
  bool PostSend(TimeNs now);
  bool PostReceive(TimeNs now);

  // Posted and with no fate yet, as far as completions tell.
  bool HasOpenSends() const { return settled_sends_ < sends_.size(); }
  size_t settled() const { return settled_sends_; }
  // Receives that the peer's messages still need.
  uint32_t MissingReceives() const;
  // Unsignaled WRs behind the last completion: done, if the queue is empty.
  void SettleSilent();
  // Binds and local invalidations happen in their turn: not while a WR before them is open.
  void CheckTurns();
  bool draining() const { return draining_; }
  bool drained() const { return drained_; }
  bool is_alive() const;  // takes WRs and executes what comes
  bool disturbed() const { return disturbed_; }
  bool broken() const { return broken_; }
  const std::string& name() const { return name_; }
  uint32_t qpn() const { return qp_->qpn(); }
  uint64_t completions() const { return completions_; }
  uint64_t successes() const { return successes_; }
  uint64_t sends() const { return sends_.size(); }
  uint64_t whole_grants() const { return whole_grants_; }
  const Arena& arena() const { return arena_; }
  std::string Describe() const;

 private:
  class SendSink : public device::CompletionSink {
   public:
    explicit SendSink(End& end) : end_(end) {}
    void OnCompletion(const device::Wc& wc) noexcept override { end_.OnSendCompletion(wc); }

   private:
    End& end_;
  };
  class RecvSink : public device::CompletionSink {
   public:
    explicit RecvSink(End& end) : end_(end) {}
    void OnCompletion(const device::Wc& wc) noexcept override { end_.OnRecvCompletion(wc); }

   private:
    End& end_;
  };

  // end.cc
  void CheckLastWqe();

  // end_post.cc
  uint32_t RandomSize();
  device::WrOpcode RandomOpcode();
  void FillLocal(SendRecord& record);
  void ChooseRemote(SendRecord& record);
  bool FollowRead(SendRecord& record);
  device::SendWr WrFor(const SendRecord& record) const;
  bool Submit(SendRecord record, device::SendWr wr, TimeNs now);
  void Misbehave(SendRecord& record);
  std::vector<device::Sge> Sges(const std::vector<Piece>& pieces, bool bad_key);
  uint64_t Address(uint32_t offset) const { return kIova + offset; }

  // end_windows.cc
  bool PostBind(TimeNs now);
  bool PostLocalInvalidation(TimeNs now);
  // A grant of the peer's for `record`, which then keeps within it; leaves it as it is if none
  // fits.
  void GoByWindow(SendRecord& record);
  bool ChooseInvalidation(SendRecord& record);
  bool IsInUse(size_t grant) const;
  void SettleGrant(const SendRecord& record, bool done);
  void NoteEnd(const Windows::Grant& grant) { whole_grants_ += grant.used ? 1 : 0; }

  // end_check.cc
  void OnSendCompletion(const device::Wc& wc);
  void OnRecvCompletion(const device::Wc& wc);
  const RecvRecord* ReceiveFor(uint64_t wr_id);
  void OnReceived(const device::Wc& wc, const RecvRecord& receive);
  void CheckInvalidated(const device::Wc& wc, const SendRecord& message);
  // The message that the next receive completes for; null: nothing was sent.
  const SendRecord* NextMessage() const;
  void SettleDone(size_t index);
  void SettleFailed(size_t index);
  void SettleReceive(uint64_t wr_id, bool whole);
  void CheckRead(size_t index);
  void CheckAtomic(size_t index);

  // end_cause.cc
  bool HasCause(const SendRecord& record, device::WcStatus status) const;
  bool HasCause(const RecvRecord& receive, device::WcStatus status) const;
  bool MayBeRefused(const SendRecord& record) const;
  void ForgetAll();
  Arena& recv_arena() { return shared_ != nullptr ? shared_->arena() : arena_; }
  template <class... Parts>
  void Blame(const Parts&... parts) {
    verdict_.Fail(name_, ": ", parts...);
  }

  static constexpr uint64_t kIova = 0x7000'0000'0000;

  const std::string name_;
  soft::Transport& transport_;
  const IpAddress address_;
  const Terms terms_;
  SharedReceives* const shared_;
  const Excuses& excuses_;
  Random& random_;
  Verdict& verdict_;
  End* peer_ = nullptr;

  Arena arena_;
  soft::SoftPd pd_;
  SendSink send_sink_{*this};
  RecvSink recv_sink_{*this};
  soft::SoftCq send_cq_{65536, &send_sink_};
  soft::SoftCq recv_cq_{65536, &recv_sink_};
  std::unique_ptr<soft::SoftMr> local_mr_;   // everything, for WRs of this end
  std::unique_ptr<soft::SoftMr> target_mr_;  // what the peer may name
  Windows windows_;                          // on parts of the target
  std::unique_ptr<soft::SoftQp> qp_;

  // This epoch's.
  std::vector<SendRecord> sends_;
  std::vector<RecvRecord> receives_;
  std::vector<size_t> takers_;  // sends that take a receive, in order
  size_t settled_sends_ = 0;
  size_t settled_receives_ = 0;
  size_t received_ = 0;  // receives that succeeded
  uint64_t last_shared_ = SharedReceives::kNone;
  uint32_t last_wqe_events_ = 0;
  uint32_t access_errors_ = 0;   // events of this end, since the epoch began
  bool peer_must_know_ = false;  // of a key that it refused
  bool send_failed_ = false;     // a send had a status other than success
  bool recv_failed_ = false;
  bool forgotten_ = false;  // no completion may come any more
  bool told_to_fail_ = false;
  bool disturbed_ = false;  // by the simulation: what the peer sends may find nobody
  bool withdrawn_ = false;  // a region has gone
  bool broken_ = false;     // some completion was a failure
  bool draining_ = false;
  bool drained_ = false;
  std::vector<size_t> open_writes_;   // failed: may have been executed, or not, or in part
  std::vector<size_t> open_atomics_;  // the same

  uint64_t completions_ = 0;
  uint64_t successes_ = 0;
  uint64_t whole_grants_ = 0;
};

}  // namespace rdmad::sim
