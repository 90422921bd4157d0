// One question of the UDP port space, and its answer: SIDR_REQ asks which QP serves a port,
// SIDR_REP says it. No connection comes of it.
//
//        active side                          passive side
//
//         Start()                              REQ received
//            |                                      |
//            v                                      v
//         kReqSent                               kReqRcvd
//            | REP, or too many retries             | Answer(): REP sent
//            v                                      v
//         kClosed                                kAnswered   answers what still comes of the REQ
//                                                   | timer
//                                                   v
//                                                kClosed
//
// It outlives the endpoint that it was made for: a passive one whose owner goes answers "rejected".
//
// Thread: control. Owner: SidrTable.
// Source: IBTA vol. 1, Communication Management, "Service ID Resolution Protocol".
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/device/connection_manager.h"
#include "daemon/device/soft/cm/cm_connection.h"
#include "daemon/device/soft/cm/cm_options.h"
#include "daemon/device/soft/mad_io.h"
#include "daemon/wire/cm/cm_sidr.h"

namespace rdmad::soft {

enum class SidrState : uint8_t { kReqSent, kReqRcvd, kAnswered, kClosed };

// "sidr_req_sent", ...
[[nodiscard]] const char* SidrStateName(SidrState state) noexcept;

struct SidrFacts {
  wire::CommId request_id{};  // the asking side's
  uint64_t transaction_id = 0;
  uint64_t service_id = 0;
  Flow flow;
  uint32_t sgid_index = 0;  // of flow.local on its device
  device::Mtu path_mtu = device::Mtu::k1024;
};

// How the peer's QP is reached.
[[nodiscard]] device::AddressVector AvOf(const SidrFacts& facts) noexcept;

class SidrExchange;

// What an exchange needs from the connection manager. It must not destroy the exchange inside a
// call.
class SidrHost {
 public:
  virtual ~SidrHost() = default;
  virtual void SendMad(const Flow& flow, const Mad& mad) = 0;
  // One timer per exchange; kNever stops it.
  virtual void SetTimer(SidrExchange& exchange, TimeNs deadline) = 0;
  // To the endpoint that owns the exchange, if there still is one.
  virtual void Emit(SidrExchange& exchange, device::CmEvent event) = 0;
  virtual void OnMoved(SidrExchange& exchange, SidrState from) = 0;
  virtual TimeNs now() const = 0;
};

class SidrExchange {
 public:
  using OwnerId = CmConnection::OwnerId;

  // `options`, `host` and `device` outlive the exchange. Begins in kReqSent or kReqRcvd without
  // doing anything.
  SidrExchange(SidrHost* host, const CmOptions& options, SidrState begin, const SidrFacts& facts,
               device::Device* device, OwnerId owner);
  SidrExchange(const SidrExchange&) = delete;
  SidrExchange& operator=(const SidrExchange&) = delete;

  void Start(const wire::CmSidrReq& req);  // once, of the active side
  void AwaitOwner();                       // once, of the passive side
  // The passive owner's answer, except the ids. FailedPrecondition: it has answered, or the time
  // for it is over.
  absl::Status Answer(wire::CmSidrRep rep);
  // The endpoint is gone.
  void Abandon();
  // The device is gone: no message gets out any more.
  void Drop();

  // A message that belongs to this exchange by id and address.
  void OnRep(const wire::CmSidrRep& rep);
  void OnRepeatedReq();
  void OnTimer();

  [[nodiscard]] SidrState state() const noexcept { return state_; }
  [[nodiscard]] const SidrFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] device::Device* device() const noexcept { return device_; }
  [[nodiscard]] OwnerId owner() const noexcept { return owner_; }
  [[nodiscard]] bool is_passive() const noexcept { return passive_; }
  // For the host alone.
  TimeNs timer = device::kNever;

 private:
  void MoveTo(SidrState next);
  void SendKept(const wire::CmMessage& message);
  void Repeat() { host_->SendMad(facts_.flow, kept_); }

  SidrHost* const host_;
  const CmOptions& options_;
  device::Device* const device_;
  const bool passive_;
  SidrState state_;
  SidrFacts facts_;
  OwnerId owner_;
  int retries_left_ = 0;
  int64_t retry_delay_ns_ = 0;
  Mad kept_{};  // our REQ or REP
};

}  // namespace rdmad::soft
