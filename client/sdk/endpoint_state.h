// What an Endpoint is: a connected id, its QP with two CQs on one completion channel, the receives that are kept posted
// and the sends that are under way.
//
// Two CQs, so that who waits for a message is not woken by the end of its own send. Whoever waits arms what it waits for
// and sleeps on the channel; of several threads one sleeps there for all and tells the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/completion_queue.h"
#include "client/sdk/deadline.h"
#include "client/sdk/endpoint_hub.h"
#include "client/sdk/queue_pair.h"
#include "rdmad/endpoint.h"

namespace rdmad::sdk {

// Thread: any; one lock for all of it. Owner: Endpoint, or the operation that connects or accepts it.
class EndpointState final : public HubMember, public Reaper {
 public:
  // Gives `id`, which is bound to a device and asynchronous, a QP with receives posted: ready to connect or accept.
  static absl::StatusOr<std::shared_ptr<EndpointState>> Create(const std::shared_ptr<Session>& session,
                                                               std::unique_ptr<CmId> id,
                                                               const EndpointOptions& options);
  ~EndpointState();
  EndpointState(const EndpointState&) = delete;
  EndpointState& operator=(const EndpointState&) = delete;

  // Accepts `request`, by which the id came; what the peer said there is peer_private_data().
  absl::Status Accept(const CmEvent& request, const ConnParam& param);
  // The connection stands: events go to the hub from now on.
  absl::Status OnEstablished(const CmEvent& event);

  absl::Status Send(Buffer buffer, std::optional<uint32_t> imm, Deadline deadline);
  absl::StatusOr<bool> TrySend(Buffer& buffer, std::optional<uint32_t> imm);
  absl::Status SendCopy(std::span<const std::byte> bytes, Deadline deadline);
  absl::StatusOr<Buffer> Receive(Deadline deadline);
  absl::StatusOr<std::optional<Buffer>> TryReceive();

  struct OneSided {
    WrOpcode opcode;
    const Buffer* local;
    RemoteBuffer remote;
    uint64_t offset_bytes = 0;
    std::optional<uint32_t> imm;
  };
  // The number of the operation, for WaitFor.
  absl::StatusOr<uint64_t> StartOneSided(const OneSided& request);
  absl::StatusOr<std::optional<uint64_t>> TryStartOneSided(const OneSided& request);
  absl::StatusOr<bool> TryDone(uint64_t operation);
  // Waits until that operation and all before it are done.
  absl::Status WaitFor(uint64_t operation, Deadline deadline);
  absl::Status Flush(Deadline deadline);
  absl::StatusOr<bool> TryFlush();
  bool Arm(bool receives, bool sends);
  absl::Status Close(Deadline deadline);

  absl::StatusOr<MemoryRegion> Share(const Buffer& buffer, uint32_t access);

  int fd() const noexcept { return channel_ == nullptr ? -1 : channel_->pipe().fd(); }
  CmId& id() noexcept { return *id_; }
  const std::vector<uint8_t>& peer_private_data() const noexcept { return peer_private_data_; }
  const EndpointOptions& options() const noexcept { return options_; }
  QueuePair qp() const noexcept { return QueuePair(qp_); }

  void OnCmEvent(const CmEvent& event) noexcept override;
  void Reap() noexcept override;

 private:
  // A work request under way, by its slot.
  struct SendSlot {
    Buffer buffer;  // given back when it is done; empty for one-sided operations
    const char* what = "";
  };

  EndpointState(const std::shared_ptr<Session>& session, std::unique_ptr<CmId> id, const EndpointOptions& options);
  absl::Status Prepare();

  // All of these with mutex_ held.
  bool Process();
  void OnRecvCompletion(const Wc& wc);
  void OnSendCompletion(const Wc& wc);
  void Fail(absl::Status status);
  absl::Status FillReceives();
  // `buffer` is taken if the post succeeds. There must be a free slot.
  absl::Status PostBuffer(Buffer& buffer, std::optional<uint32_t> imm);
  absl::StatusOr<uint64_t> PostOneSided(const OneSided& request);
  absl::Status PostOne(const SendWr& wr, const char* what);
  // Waits for room in the send queue.
  absl::Status WaitForSlot(std::unique_lock<std::mutex>& lock, Deadline deadline);
  // Waits until something may have happened in `cq`.
  absl::Status WaitForProgress(std::unique_lock<std::mutex>& lock, CompletionQueueState& cq, Deadline deadline);
  absl::StatusOr<uint32_t> LkeyOf(const Buffer& buffer);
  // Why nothing can be sent or received any more; OK while it can.
  absl::Status Ended();
  bool HasFreeSlot() const noexcept { return !free_slots_.empty(); }
  bool AllDone() const noexcept { return free_slots_.size() == send_slots_.size(); }

  const std::shared_ptr<Session> session_;
  const EndpointOptions options_;
  std::shared_ptr<EndpointHub> hub_;
  EventChannel* hub_channel_ = nullptr;
  std::unique_ptr<CmId> id_;
  std::shared_ptr<CompletionChannelState> channel_;  // null when polled
  std::shared_ptr<CompletionQueueState> send_cq_;
  std::shared_ptr<CompletionQueueState> recv_cq_;
  std::shared_ptr<QueuePairState> qp_;
  std::shared_ptr<PdState> pd_;
  bool accepted_ = false;  // rather than connected
  std::vector<uint8_t> peer_private_data_;

  std::mutex mutex_;
  std::condition_variable progress_;
  uint64_t progress_count_ = 0;
  bool someone_sleeps_ = false;  // on the channel, for all
  uint32_t followers_ = 0;

  std::vector<Buffer> recv_slots_;
  std::vector<uint32_t> empty_recv_slots_;
  std::deque<Buffer> received_;
  std::vector<SendSlot> send_slots_;
  std::vector<uint32_t> free_slots_;
  uint64_t started_operations_ = 0;
  uint64_t succeeded_operations_ = 0;  // from the first on: completions of a send queue come in order
  uint64_t succeeded_when_armed_ = 0;  // as of the last Arm for sends
  PoolMapping* last_pool_ = nullptr;  // the pool of `last_lkey_`; kept alive by the buffers that lead here
  uint64_t last_pool_handle_ = 0;
  uint32_t last_lkey_ = 0;

  absl::Status error_;     // what failed first
  bool flushed_ = false;   // the QP is in error
  bool closed_ = false;    // by us
  std::atomic<bool> peer_closed_{false};
  std::atomic<bool> device_removed_{false};
};

}  // namespace rdmad::sdk
