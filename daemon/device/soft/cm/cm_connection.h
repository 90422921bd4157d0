// One connection's protocol: REQ, MRA, REP, RTU, REJ, DREQ, DREP, their repetitions and time-outs
// (states in cm_state.h).
//
// It outlives the endpoint that it was made for: what a request, a connection or a time-wait still
// owes the peer is settled after the application has gone. Messages, timers and the owner's wishes
// go in; messages, one timer and events for the owner come out through CmConnectionHost. At most
// one message waits for an answer or may have to be repeated in any state; its bytes are kept.
//
// Thread: control. Owner: CmConnectionTable.
// Source: IBTA vol. 1, Communication Management, "Communication Establishment and Release
// Protocols".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/cm_facts.h"
#include "daemon/device/soft/cm/cm_options.h"
#include "daemon/device/soft/cm/cm_state.h"
#include "daemon/device/soft/mad_io.h"
#include "daemon/wire/cm/cm_message.h"

namespace rdmad::soft {

using Mad = std::array<uint8_t, kMadBytes>;

class CmConnection;

// What a connection needs from the connection manager. It must not destroy the connection inside a
// call.
class CmConnectionHost {
 public:
  virtual ~CmConnectionHost() = default;
  virtual void SendMad(const Flow& flow, const Mad& mad) = 0;
  // One timer per connection; kNever stops it.
  virtual void SetTimer(CmConnection& connection, TimeNs deadline) = 0;
  // To the endpoint that owns the connection, if there still is one.
  virtual void Emit(CmConnection& connection, device::CmEvent event) = 0;
  virtual void OnMoved(CmConnection& connection, CmState from) = 0;
  // Gives the connection another communication id, for a REQ that differs from the last.
  virtual void Rename(CmConnection& connection) = 0;
  // The peer has just named its QP. If another connection claims to be with it, that one is stale
  // and ends.
  virtual void OnRemoteQpn(CmConnection& connection) = 0;
  virtual TimeNs now() const = 0;
};

class CmConnection {
 public:
  using OwnerId = uint64_t;  // of an endpoint; 0: none

  // `options`, `host` and `device` outlive the connection. Begins in kReqSent or kReqRcvd without
  // doing anything.
  CmConnection(CmConnectionHost* host, const CmOptions& options, CmState begin,
               const CmFacts& facts, device::Device* device, OwnerId owner);
  CmConnection(const CmConnection&) = delete;
  CmConnection& operator=(const CmConnection&) = delete;

  // The owner's wishes. FailedPrecondition names the state that they do not fit.
  void Start(const wire::CmReq& req);  // once, of the active side
  void AwaitOwner();                   // once, of the passive side
  absl::Status Establish();
  absl::Status Accept(const device::ConnParam& param);
  absl::Status Reject(std::span<const uint8_t> private_data);
  // OK as well if the connection is over already or about to be.
  absl::Status Disconnect();
  absl::Status NotifyCommEstablished();
  // The endpoint is gone: ends what there is, by itself.
  void Abandon();
  // The device is gone: no message gets out any more.
  void Drop();
  // Another connection with the same remote QP has come up.
  void OnStale();

  // A message that belongs to this connection by ids and address.
  void OnMessage(const wire::CmMessage& message);
  void OnTimer();

  [[nodiscard]] CmState state() const noexcept { return state_; }
  [[nodiscard]] const CmFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] device::Device* device() const noexcept { return device_; }
  [[nodiscard]] OwnerId owner() const noexcept { return owner_; }
  [[nodiscard]] bool is_passive() const noexcept { return passive_; }
  // Whether `req` is the one that made this passive connection, sent once more.
  [[nodiscard]] bool IsRepetition(const wire::CmReq& req, uint64_t transaction_id) const noexcept;
  // For the host alone.
  void set_local_id(wire::CommId id) noexcept { facts_.local_id = id; }
  TimeNs timer = device::kNever;

 private:
  // One handler per state.
  void InReqSent(const wire::CmMessage& message);
  void InRepRcvd(const wire::CmMessage& message);
  void InReqRcvd(const wire::CmMessage& message);
  void InRepSent(const wire::CmMessage& message);
  void InEstablished(const wire::CmMessage& message);
  void InDreqSent(const wire::CmMessage& message);
  void InTimewait(const wire::CmMessage& message);
  void InRejected(const wire::CmMessage& message);

  absl::Status Reject(wire::RejReason reason, std::span<const uint8_t> private_data);
  // `status`: of the event that the move brings, if any.
  void MoveTo(CmState next, int status = 0);
  int64_t TimewaitNs() const noexcept;
  absl::Status WrongState(const char* call) const;

  void OnRep(const wire::CmRep& rep);
  void OnRejOfReq(const wire::CmRej& rej);
  void OnStaleRefusal();
  // The REQ that was sent last, under another communication id. Nothing is sent yet.
  std::optional<wire::CmReq> RenamedReq();
  void OnWithdrawn(const wire::CmRej& rej);  // the passive side's request
  void OnMra(const wire::CmMra& mra);

  // Messages that may have to be repeated are kept; others are sent and forgotten.
  void Keep(const wire::CmMessage& message);
  void SendKept(const wire::CmMessage& message);
  void SendOnce(const wire::CmMessage& message);
  void Repeat() { host_->SendMad(facts_.flow, kept_); }
  void SendRtu();
  void SendDreq();
  void SendDrep();
  void SendMra(wire::CmMessageKind kind);
  wire::CmRej MakeRej(wire::CmMessageKind kind, wire::RejReason reason) const;
  void SendTimeoutRej();

  // Starts or continues waiting for an answer to the kept message. False: tried often enough.
  void StartRetries(int max_retries);
  bool Retry();

  void EmitPlain(device::CmEventType type, int status = 0);
  void EmitRejected(const wire::CmRej& rej);

  CmConnectionHost* const host_;
  const CmOptions& options_;
  device::Device* const device_;
  const bool passive_;
  CmState state_;
  CmFacts facts_;
  OwnerId owner_;
  int retries_left_ = 0;
  int64_t retry_delay_ns_ = 0;
  int stale_refusals_ = 0;
  bool asks_later_ = false;  // the kept REQ has not been sent yet
  Mad kept_{};  // the last REQ, REP, REJ or DREQ
};

}  // namespace rdmad::soft
