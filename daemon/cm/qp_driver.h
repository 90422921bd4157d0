// Moves the QP of a CM id through the states of its connection, as librdmacm does it in the
// application.
//
// A move is a chain of modify commands to the engine, which executes them in order, so all of them
// go out at once: three answers cost one wake-up on either side. Where one is refused, those behind
// it come to nothing or lead to where the QP is not left. One chain runs at a time: going to ERR
// cuts it short, and comes behind it. A chain whose driver has gone ends quietly.
//
// Thread: control. Owner: its CmId.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/device/connection_manager.h"
#include "daemon/engine/engine_proxy.h"

namespace rdmad::cm {

class QpDriver {
 public:
  using Done = std::function<void(absl::Status)>;

  // Reads and atomics in flight, where the application decides them (rdma_accept).
  struct Depths {
    std::optional<uint8_t> max_dest_rd_atomic;  // responder resources
    std::optional<uint8_t> max_rd_atomic;       // initiator depth
  };

  QpDriver() = default;
  QpDriver(const QpDriver&) = delete;
  QpDriver& operator=(const QpDriver&) = delete;
  // Calls an outstanding Done with Cancelled.
  ~QpDriver();

  [[nodiscard]] device::Qp* qp() const noexcept { return qp_; }
  void Bind(device::Qp* qp, engine::EngineProxy* engine) noexcept;
  // For the way to RTR, instead of the endpoint's; 0: the endpoint's.
  void SetMinRnrTimer(uint8_t code) noexcept { min_rnr_timer_ = code; }
  // Ends a chain with Cancelled. Moves nothing.
  void Unbind();

  // RESET to INIT without any remote access, so that receives can be posted.
  void MoveToInit(Done done);
  // A UD QP that is in RESET: INIT, RTR, RTS.
  void MoveDatagramQpToRts(uint32_t qkey, Done done);
  // Of a UD QP in RTS.
  void SetQkey(uint32_t qkey, Done done);
  // INIT (now with the connection's access rights), RTR, RTS, with the endpoint's attributes; what
  // `depths` names takes the place of the endpoint's values. Errors: those of InitQpAttr; Internal
  // (the QP refused); Cancelled (MoveToErr, Unbind or the end of the driver).
  void MoveToRts(const device::CmEndpoint& endpoint, const Depths& depths, Done done);
  // At once, whatever runs. Nothing to do without a QP.
  void MoveToErr(Done done = nullptr);

 private:
  struct Chain;

  void Start(std::vector<device::QpAttr> steps, Done done);
  static void OnAnswer(const std::shared_ptr<Chain>& chain, device::QpResult result);
  void Cancel();

  device::Qp* qp_ = nullptr;
  engine::EngineProxy* engine_ = nullptr;
  uint8_t min_rnr_timer_ = 0;
  std::shared_ptr<Chain> chain_;  // the running one
};

}  // namespace rdmad::cm
