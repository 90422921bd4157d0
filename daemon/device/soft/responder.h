// The receiving half of an RC or UC QP: checks requests, executes them in PSN order, and answers.
//
// A request passes a pipeline of named checks in the order of the specification: PSN, opcode
// sequence, right to the operation, resources (a receive, room for a response), length, key. The
// first that does not hold decides the answer: an RNR NAK, or a NAK that ends the QP. Answers are
// not sent at once. READ responses and atomic results stand in a bounded queue and go out as the
// turn's budget allows; behind them goes one ACK or NAK, which speaks for everything received in
// this turn.
//
// Repeated requests never touch the live sequence: SENDs and WRITEs are acknowledged again, READs
// executed again, atomics answered from the recorded result. A gap is NAKed once, and once more
// when what follows comes a second time: the peer has gone back, and what it sent first was lost
// again. Until the missing packet comes, what follows is dropped.
//
// UC has the same pipeline but no answers: a message that is not whole, or that a check does not
// let pass, is dropped from there on, in silence, and the receive it had begun to use serves the
// next one.
//
// Files: responder.cc receives, responder_checks.cc and responder_execute.cc are the pipeline,
// responder_answers.cc sends, responder_unreliable.cc receives on UC.
// Thread: engine, but for construction. Owner: the SoftQp.
// Source: IBTA vol. 1, Transport Layer, "Reliable Service" and "Responder".
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "daemon/device/soft/qp_context.h"
#include "daemon/device/soft/receive_queue.h"
#include "daemon/device/soft/run_result.h"
#include "daemon/wire/aeth.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

// What a check found.
enum class Finding : uint8_t {
  kPass,
  kNotReady,         // no receive is posted
  kInvalidRequest,   // makes no sense here, or is not supported
  kRemoteAccess,     // key, range or right does not hold
  kReceiveTooShort,  // the message is longer than the posted buffers
  kReceiveBroken,    // the posted buffers' keys do not hold
};

class Responder {
 public:
  explicit Responder(QpContext& qp);

  // Into kRtr: from here on requests are executed.
  void Start() noexcept;
  void Reset() noexcept;
  // Completes every receive with kWrFlushErr. The state is kErr already.
  void Flush() noexcept;

  [[nodiscard]] device::PostResult Post(const device::RecvWr& wr) noexcept;
  void OnRequest(const wire::PacketView& packet) noexcept;
  // The same on UC. True if Run() is wanted.
  [[nodiscard]] bool OnUnreliableRequest(const wire::PacketView& packet) noexcept;
  // Sends answers.
  RunResult Run(uint32_t budget_bytes, TimeNs now) noexcept;

  wire::Psn expected_psn() const noexcept { return expected_psn_; }

  // For the local path. The checks in the pipeline's order are its caller's task.
  bool Executes() const noexcept { return !failing_; }
  bool MayDo(wire::Operation operation) const noexcept;
  Finding TakeReceive() noexcept;
  bool ReceiveFits(uint64_t bytes) const noexcept { return bytes <= current_.capacity_bytes; }
  SgeList ReceiveList() const noexcept {
    const uint64_t pd_id = qp_.srq != nullptr ? qp_.srq->pd_id() : qp_.pd_id;
    return {current_.sges(), pd_id, device::kAccessLocalWrite, false};
  }
  bool local_message() const noexcept { return local_message_; }
  void BeginLocalMessage() noexcept;
  // UC: the message in progress comes to nothing. True if the QP is to end.
  bool DropMessage(Finding finding) noexcept;
  // A SEND may invalidate that key.
  bool MayInvalidate(uint32_t rkey) const noexcept {
    return qp_.core.mrs.MayInvalidate(rkey, qp_.key_scope);
  }
  // What there is to tell of a message that completes a receive.
  struct ReceiveInfo {
    bool completes = false;
    bool is_write = false;
    bool has_imm = false;
    bool has_inv = false;
    bool solicited = false;
    uint32_t imm_be = 0;  // or the key that was invalidated
    uint32_t byte_len = 0;
  };
  void FinishLocalMessage(uint32_t packets, const ReceiveInfo& info) noexcept;
  // Completes the receive in use as the finding demands, without answering.
  void FailReceive(Finding finding) noexcept;
  // The event that the finding demands.
  void RaiseFor(Finding finding) noexcept;
  // The sender waits for a receive; the next post wakes it.
  void set_local_sender_waits() noexcept {
    local_sender_waits_ = true;
    if (qp_.srq != nullptr) qp_.srq->AddWaiter(qp_.srq_waiter);
  }
  bool TakeLocalSenderWaits() noexcept { return std::exchange(local_sender_waits_, false); }

 private:
  enum class Message : uint8_t { kNone, kSend, kWrite };
  using Check = Finding (Responder::*)(const wire::PacketView&) noexcept;

  // A READ that is being answered, or an atomic's result.
  struct Response {
    wire::Psn psn;  // of the first response
    uint32_t packets = 0;
    uint32_t sent = 0;
    uint64_t va = 0;
    uint32_t rkey = 0;
    uint32_t length_bytes = 0;
    uint64_t atomic_value = 0;
    wire::Msn msn;
    bool is_atomic = false;
    bool is_repeated = false;  // to a request that was answered before
  };
  struct AtomicResult {
    wire::Psn psn;
    uint64_t value = 0;
    bool valid = false;
  };
  enum class Ack : uint8_t { kNone, kAck, kNak, kFatalNak };
  enum class Said : uint8_t { kNothing, kMissing, kNotReady };

  // responder_checks.cc and responder_execute.cc, in the order of the pipeline
  bool CheckPsn(const wire::PacketView& packet) noexcept;
  Finding CheckSequence(const wire::PacketView& packet) noexcept;
  Finding CheckOperation(const wire::PacketView& packet) noexcept;
  Finding CheckResources(const wire::PacketView& packet) noexcept;
  Finding CheckLength(const wire::PacketView& packet) noexcept;
  Finding CheckKey(const wire::PacketView& packet) noexcept;
  // Where remote rights lead: by a region of the PD, or a window of this QP.
  std::byte* Translate(uint32_t rkey, uint64_t va, uint64_t bytes, uint32_t access) const noexcept {
    return qp_.core.mrs.Translate(rkey, qp_.pd_id, va, bytes, access, qp_.key_scope);
  }
  Finding Execute(const wire::PacketView& packet) noexcept;
  Finding ExecuteSend(const wire::PacketView& packet) noexcept;
  Finding ExecuteWrite(const wire::PacketView& packet) noexcept;
  void ExecuteRead(const wire::PacketView& packet) noexcept;
  Finding ExecuteAtomic(const wire::PacketView& packet) noexcept;

  // responder.cc
  Finding RunChecks(const wire::PacketView& packet) noexcept;
  void Refuse(Finding finding, wire::Psn psn) noexcept;
  void OnDuplicate(const wire::PacketView& packet) noexcept;
  void CompleteReceive(const ReceiveInfo& info) noexcept;
  void NoteEstablished() noexcept;

  // responder_answers.cc
  void QueueAck(wire::Psn psn) noexcept;
  void QueueNak(uint8_t syndrome, wire::Psn psn, bool fatal) noexcept;
  void DropStaleNak() noexcept;
  uint32_t ResponsePackets(uint32_t length_bytes) const noexcept {
    return length_bytes == 0 ? 1 : (length_bytes - 1) / qp_.mtu_bytes + 1;
  }
  void PushResponse(const Response& response) noexcept;
  void CancelResponsesFrom(wire::Psn psn) noexcept;
  bool HasRoomForResponse() noexcept;
  void DropFirstResponse() noexcept;
  bool SendResponses(uint32_t budget_bytes, RunResult* result) noexcept;
  bool SendAck(RunResult* result) noexcept;
  void ForgetOldResponseEnd() noexcept;
  wire::Psn DuplicateAckPsn(wire::Psn psn) const noexcept;

  QpContext& qp_;
  ReceiveQueue queue_;  // unused with an SRQ

  wire::Psn expected_psn_;
  wire::Msn msn_;
  Message message_ = Message::kNone;
  bool established_ = false;    // the peer's first request was told of
  Said said_ = Said::kNothing;  // about expected_psn_
  wire::Psn last_behind_;       // of the latest packet behind the missing one
  bool failing_ = false;        // a fatal NAK is on its way out; nothing is executed any more
  Finding failure_ = Finding::kPass;
  bool local_message_ = false;  // a local message is half copied
  bool local_sender_waits_ = false;

  // The receive in use, by a SEND or a WRITE with immediate.
  bool has_current_ = false;
  ReceiveWqe current_;
  SgeCursor receive_cursor_;
  uint64_t received_bytes_ = 0;

  // The WRITE in progress.
  uint64_t write_va_ = 0;
  uint32_t write_rkey_ = 0;
  uint32_t write_length_bytes_ = 0;
  uint32_t write_left_bytes_ = 0;

  // READ and atomic answers in PSN order: a ring.
  std::array<Response, kMaxRdAtomic> responses_{};
  uint32_t response_head_ = 0;
  uint32_t response_count_ = 0;
  // Results of the latest atomics: a ring.
  std::array<AtomicResult, kMaxRdAtomic> atomics_{};
  uint32_t atomic_next_ = 0;
  // The PSN behind the latest READ or atomic, if it may lie in reach of a repeated request.
  bool has_response_end_ = false;
  wire::Psn response_end_;

  Ack ack_ = Ack::kNone;
  uint8_t ack_syndrome_ = 0;
  wire::Psn ack_psn_;
};

}  // namespace rdmad::soft
