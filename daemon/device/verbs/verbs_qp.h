// A queue pair of a verbs device.
//
// The hardware names a WR by a number of ours: the QP's slot in the data path, and the WR's place
// in its queue. Two rings hold what the hardware does not keep for us: the application's wr_ids,
// and how many sends of the queue are done when one completes (also those that asked for no
// completion).
//
// Whatever fails, a WR completes exactly once and in its place. Three cases go beyond what the
// hardware does by itself:
//   error     receives that are posted to a QP in the error state are flushed here, behind those
//             that the hardware flushes: rxe's never hear of them.
//   refused   the driver takes a WR of a batch not although it was checked (out of memory), or it
//             is not for the driver (a bind of a window that is not there): the QP moves to the
//             error state, once the last send before it that tells of its completion has done so;
//             then the refused ones complete and all that follow, until the QP is reset. Sends
//             behind that last one ask for no completion, so nobody hears whether they were sent
//             or flushed. A *mark*, a send of our own behind them, tells when the hardware is
//             done with them; a datagram without an address can have none.
//   dead      the device is gone: everything flushes at once, and so does what is posted later.
//
// Thread: made and destroyed by control; everything else as device::Qp says. Owner: the session.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"
#include "daemon/device/verbs/verbs_cq.h"

namespace rdmad::verbs {

class VerbsSrq;

class VerbsQp final : public device::Qp, public HardwareObject {
 public:
  static absl::StatusOr<std::unique_ptr<VerbsQp>> Create(std::shared_ptr<OpenContext> context,
                                                         ibv_pd* pd, const device::QpInit& init);
  ~VerbsQp() override;

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  void CloseHardware() noexcept override;

  uint32_t qpn() const noexcept override { return qpn_; }
  const device::QpCap& cap() const noexcept override { return cap_; }
  device::PostResult PostSend(const device::SendWr& wr, device::TimeNs now) noexcept override;
  device::PostResult PostRecv(const device::RecvWr& wr, device::TimeNs now) noexcept override;
  device::QpResult Modify(const device::QpAttr& attr, device::TimeNs now) noexcept override;
  device::QpAttr Query() const noexcept override;
  device::QpAttr Known() const noexcept override;
  bool same_daemon() const noexcept override { return false; }

  // For the data path. Engine thread.
  [[nodiscard]] ibv_qp* hw() const noexcept { return hw_; }
  [[nodiscard]] OpenContext& context() const noexcept { return *context_; }
  [[nodiscard]] VerbsCq& send_cq() const noexcept { return send_cq_; }
  [[nodiscard]] VerbsCq& recv_cq() const noexcept { return recv_cq_; }
  [[nodiscard]] device::QpType type() const noexcept { return init_.type; }  // any thread
  [[nodiscard]] uint64_t owner_token() const noexcept { return init_.owner_token; }
  void OnCompletion(const ibv_wc& wc) noexcept;
  // Of its SRQ's; `wr_id` is the application's.
  void OnSrqRecvDone(uint64_t wr_id, const ibv_wc& wc) noexcept { Receive(wr_id, wc); }
  // The chain was posted but for this send and those after it.
  void OnSendRefused(const ibv_send_wr& refused) noexcept;
  void OnRecvsRefused(const ibv_recv_wr& refused) noexcept;
  // The windows of binds (to the region `lkey`, or all) that are posted and not known to be done
  // are taken for bound.
  void NoteBindsUnderWay(std::optional<uint32_t> lkey) noexcept;
  void Die() noexcept;
  // The hardware has moved it to the error state, with no completion that says so. Any thread.
  void OnErrorEvent() noexcept { failed_.store(true, std::memory_order_relaxed); }

 private:
  struct SendEntry {
    uint64_t wr_id;
    device::WcOpcode opcode;
    uint32_t key;        // kBindMw, kLocalInv
    uint32_t bind_lkey;  // kBindMw; 0: to nothing
    bool signaled;       // the application wants to hear that it is done
    bool tells;          // the hardware says so
  };

  VerbsQp(std::shared_ptr<OpenContext> context, const device::QpInit& init,
          const device::QpCap& cap);

  device::PostResult CheckSend(const device::SendWr& wr) const noexcept;
  bool CanBind(const device::SendWr& wr) const noexcept;
  void Append(uint32_t position, const device::SendWr& wr, ibv_wr_opcode opcode,
              device::TimeNs now) noexcept;
  void LeaveSrq(device::TimeNs now) noexcept;
  void Receive(uint64_t wr_id, const ibv_wc& wc) noexcept;
  // The send at `position`, the last one, is not for the hardware.
  void RefuseSend(uint32_t position, device::WcStatus status, device::TimeNs now) noexcept;
  // Ends the sends when those before it that tell are done. `ah`: see EndSends().
  void NoteRefused(uint32_t position, device::WcStatus status, ibv_ah* ah) noexcept;
  // The error state, and a mark behind what the hardware still has. `ah`: where a UD's mark would
  // go; null: it has none.
  void EndSends(ibv_ah* ah) noexcept;
  // Sends before `end` are done; all but perhaps the last one well.
  void SettleWindows(uint32_t end, bool last_succeeded) noexcept;
  void OnSendDone(uint32_t position, const ibv_wc& wc) noexcept;
  void OnRecvDone(uint32_t position, const ibv_wc& wc) noexcept;
  // The hardware has no sends any more: the refused one fails, the rest flushes.
  void OnDrained() noexcept;
  // Without an address, that is.
  [[nodiscard]] bool can_mark() const noexcept { return init_.type != device::QpType::kUd; }
  // Moves the QP, hardware and all, to the error state.
  void EnterError() noexcept;
  // Receives from this position on are flushed here; the hardware does not get them.
  void TakeOverRecvs(uint32_t from) noexcept;
  void NoteStatus(ibv_wc_status status) noexcept;
  // Completes the oldest send or receive without the hardware.
  void FinishSend(device::WcStatus status) noexcept;
  void FinishRecv(device::WcStatus status) noexcept;
  // Those before `end` asked for no completion, and the hardware has done them without a word.
  void SkipSends(uint32_t end) noexcept;
  // Receives that the hardware does not have, if those that it has are done.
  void FlushOwnRecvs() noexcept;
  void FlushAll() noexcept;
  void StartStoppedSends() noexcept;
  void Forget() noexcept;

  const std::shared_ptr<OpenContext> context_;
  const device::QpInit init_;
  const device::QpCap cap_;
  VerbsCq& send_cq_;
  VerbsCq& recv_cq_;
  VerbsSrq* const srq_;  // null: it has a receive queue of its own
  ibv_qp* hw_ = nullptr;
  uint32_t qpn_ = 0;
  uint32_t slot_ = 0;
  bool active_ = false;
  device::QpState state_ = device::QpState::kReset;  // as last set by us
  std::atomic<bool> failed_ = false;                 // since then, by an event
  device::Mtu path_mtu_ = device::QpAttr().path_mtu;  // as last set by us

  // Positions count WRs, run free and wrap; an entry stands at position & mask.
  const uint32_t send_mask_;
  const uint32_t recv_mask_;
  std::unique_ptr<SendEntry[]> sends_;
  std::unique_ptr<uint64_t[]> recvs_;
  uint32_t send_head_ = 0;  // oldest not known to be done
  uint32_t send_tail_ = 0;  // next
  uint32_t recv_head_ = 0;
  uint32_t recv_tail_ = 0;
  uint32_t window_changes_ = 0;  // binds and invalidations between send_head_ and send_tail_
  bool binds_ = false;           // has bound a window, ever
  bool sends_refused_ = false;
  uint32_t refused_ = 0;  // the first one
  device::WcStatus refused_status_ = device::WcStatus::kLocQpOpErr;
  std::optional<uint32_t> last_told_;  // the last before it that tells, and has not
  bool sends_drained_ = false;  // with sends_refused_: the hardware has none any more
  bool recvs_are_ours_ = false;
  uint32_t recvs_in_hardware_end_ = 0;  // with recvs_are_ours_: the hardware has those before
};

}  // namespace rdmad::verbs
