// What one engine drives of all verbs devices: polls their completion queues, hands on their
// asynchronous events, and batches what is posted.
//
// A CQ is *hot* while completions come: it is polled each turn. After a while without any, or when
// the engine goes to sleep, it is armed, polled once more and left alone until its completion
// channel says that there is something. So an idle application costs nothing, and a busy one no
// interrupt.
//
// Sends are collected and posted as one chain: per QP, at most kMaxBatch, at the latest in the
// DoWork() of the same turn. One post is one doorbell (and one system call with rxe). Receives
// likewise, per QP or SRQ (no system call with rxe, but a lock), and never after sends that were
// taken later.
//
// Thread: engine. Owner: main.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "daemon/device/verbs/open_context.h"
#include "daemon/device/verbs/recv_batch.h"
#include "daemon/device/verbs/wr_number.h"
#include "proto/shm/work_queue.h"

namespace rdmad::verbs {

class VerbsCq;
class VerbsQp;
class VerbsSrq;

class VerbsDataPath final : public device::DataPath {
 public:
  static constexpr uint32_t kMaxBatch = 32;

  // `sink` hears of asynchronous events of QPs and SRQs; it outlives the path. `engine` is the index
  // of whose path it is. Errors: the kernel's.
  static absl::StatusOr<std::unique_ptr<VerbsDataPath>> Create(device::AsyncSink* sink,
                                                               uint32_t engine = 0);
  ~VerbsDataPath() override;

  int DoWork(device::TimeNs now) noexcept override;
  device::TimeNs NextDeadline(device::TimeNs now) noexcept override;
  std::span<const int> PollFds() const noexcept override { return {&epoll_number_, 1}; }
  uint32_t PollFdsGeneration() const noexcept override { return 1; }

  // A context's descriptors are watched from now on, and not any more.
  void AddContext(OpenContext& context) noexcept;
  void RemoveContext(OpenContext& context) noexcept;
  // The device is gone: all work of the context flushes, and its hardware is not touched again.
  void Kill(OpenContext& context, device::TimeNs now) noexcept;

  // Give a slot, which the numbers of its WRs have (wr_number.h).
  uint32_t AddQp(VerbsQp& qp) noexcept { return qps_.Add(qp); }
  void RemoveQp(VerbsQp& qp, uint32_t slot) noexcept;
  uint32_t AddSrq(VerbsSrq& srq) noexcept { return srqs_.Add(srq); }
  void RemoveSrq(const VerbsSrq& srq, uint32_t slot) noexcept;
  // Windows of the context that QPs may be binding to the region at this moment are taken for bound
  // to it.
  void NoteBindsTo(const OpenContext& context, uint32_t lkey) noexcept;
  void AddCq(VerbsCq& cq) noexcept;
  void RemoveCq(VerbsCq& cq) noexcept;
  void Heat(VerbsCq& cq, device::TimeNs now) noexcept;
  // One of its CQs is marked broken. Any thread.
  void RaiseAlarm() noexcept;
  // Takes what the hardware has completed by now.
  void Drain(VerbsCq& cq, device::TimeNs now) noexcept;

  // Takes a send that the QP has checked.
  void AppendSend(VerbsQp& qp, uint64_t number, const device::SendWr& wr, ibv_wr_opcode opcode,
                  unsigned int flags) noexcept;
  // The last send of the QP's that is not posted yet will tell when it is done. False: there is
  // none.
  bool SignalLast(const VerbsQp& qp) noexcept;
  // Posts what was appended, receives too.
  void FlushSends() noexcept;

  // Take a receive that the queue has checked.
  void AppendRecv(VerbsQp& qp, uint64_t number, std::span<const device::Sge> sges) noexcept;
  void AppendRecv(VerbsSrq& srq, uint64_t number, std::span<const device::Sge> sges) noexcept;
  void FlushRecvs() noexcept;
  // Forgets those of the QP's that are not posted yet. Returns how many.
  uint32_t DropRecvs(const VerbsQp& qp) noexcept;

  device::AsyncSink& sink() noexcept { return sink_; }
  uint32_t engine() const noexcept { return engine_; }  // any thread

 private:
  VerbsDataPath(device::AsyncSink* sink, uint32_t engine, UniqueFd epoll_fd, UniqueFd alarm_fd);

  void ForgetRecvs() noexcept;
  void UnwatchContext(const OpenContext& context) noexcept;
  int PollHot(device::TimeNs now) noexcept;
  int PollCq(VerbsCq& cq, device::TimeNs now) noexcept;
  // Arms it and takes what came meanwhile; false if there was something.
  bool Cool(VerbsCq& cq, device::TimeNs now) noexcept;
  int TakeEvents(device::TimeNs now) noexcept;
  int TakeAlarm() noexcept;
  int TakeCompletionEvents(OpenContext& context, device::TimeNs now) noexcept;
  int TakeAsyncEvents(OpenContext& context, device::TimeNs now) noexcept;
  void Dispatch(const ibv_wc& wc) noexcept;
  void OnAsyncEvent(const ibv_async_event& event) noexcept;

  device::AsyncSink& sink_;
  const uint32_t engine_;
  const UniqueFd epoll_fd_;
  const UniqueFd alarm_fd_;
  const int epoll_number_;
  std::vector<OpenContext*> contexts_;
  SlotTable<VerbsQp> qps_;
  SlotTable<VerbsSrq> srqs_;
  std::vector<VerbsCq*> cqs_;
  std::vector<VerbsCq*> hot_;
  device::TimeNs events_taken_at_ = 0;

  // The batch: sends of one QP.
  VerbsQp* batch_qp_ = nullptr;
  uint32_t batch_count_ = 0;
  uint32_t batch_sges_ = 0;
  std::array<ibv_send_wr, kMaxBatch> batch_wrs_;
  std::array<ibv_sge, kMaxBatch * shm::kMaxSge> batch_sge_pool_;

  // Receives of one QP or SRQ.
  RecvBatch recvs_;
  VerbsQp* recv_qp_ = nullptr;
  VerbsSrq* recv_srq_ = nullptr;
};

}  // namespace rdmad::verbs
