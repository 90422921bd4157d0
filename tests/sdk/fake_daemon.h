// The daemon's side of one session, in this process: real segments, pipes and descriptors, and no engine. What an
// engine or a peer would do is done by the test, at the moment that it chooses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/sdk/control_channel.h"
#include "client/sdk/mapping.h"
#include "client/sdk/session.h"
#include "client/sdk/unique_fd.h"
#include "proto/rdmad/v1/verbs.pb.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/engine_page.h"
#include "proto/shm/event.h"
#include "proto/shm/work_queue.h"

namespace rdmad::sdk::testing {

// What of a Cqe a test decides.
struct Completion {
  uint64_t wr_id = 0;
  uint8_t status = 0;
  uint8_t opcode = 0;
  uint8_t flags = 0;
  uint32_t byte_len = 0;
  uint32_t imm_be = 0;
  uint32_t wqe_count = 0;
  uint32_t src_qpn = 0;
};

// Thread: any; one lock for all.
class FakeDaemon {
 public:
  FakeDaemon();
  ~FakeDaemon();

  // An attached session. Once.
  std::shared_ptr<Session> Attach();
  // A client on that session.
  std::shared_ptr<ClientState> AttachClient();

  // Hangs up everywhere, as the kernel does when a daemon dies.
  void Die();
  bool dead() const noexcept {
    const std::lock_guard lock(mutex_);
    return dead_;
  }

  // What an engine does.
  void Complete(uint64_t qp, const Completion& completion, bool is_recv);
  // Slots that the client has published and the test has not taken yet.
  uint32_t PublishedSends(uint64_t qp) const;
  uint32_t PublishedReceives(uint64_t qp) const;
  // The newest WR that was published, of a QP's send queue.
  shm::WorkSlot LastSend(uint64_t qp) const;
  // Takes the oldest published receive of an SRQ, and moves the ring's head.
  shm::WorkSlot TakeSrqReceive(uint64_t srq);
  uint32_t PublishedSrqReceives(uint64_t srq) const;
  // QPs and SRQs.
  bool DoorbellRung(uint64_t queue) const;
  uint32_t srq_doorbell = 0;  // that the next QPs' replies name; 0: the SRQ's own
  void SetEngineSleeping(bool sleeping);
  // Bytes in the wake pipe; takes them out.
  int TakeWakes();

  // What the CM does. The event's generation is set to that of the id; it is counted for the id.
  void SendEvent(shm::CmEvent event);
  // An event of `type` for `id`.
  void SendEvent(uint64_t id, uint32_t type, int status = 0);
  // A connect request at `listener`; returns the new id.
  uint64_t SendConnectRequest(uint64_t listener);

  // Calls by method ("CreateQp"), for tests that count.
  int calls(const std::string& method) const;
  // The next call of this method fails so.
  void FailNext(const std::string& method, absl::Status status);
  // The last request of this method. It must be of that type.
  template <typename Request>
  Request LastRequest(const std::string& method) const {
    const std::lock_guard lock(mutex_);
    Request request;
    request.ParseFromString(requests_.at(method));
    return request;
  }
  // What QueryDevices answers.
  void SetDevices(const v1::QueryDevicesReply& devices) {
    const std::lock_guard lock(mutex_);
    devices_ = devices;
  }
  bool HasId(uint64_t id) const;
  // From now on Disconnect answers that there is no connection any more.
  void SetConnectionsOver() {
    const std::lock_guard lock(mutex_);
    connections_over_ = true;
  }

 private:
  class Channel;
  struct Arena;
  struct Cq {
    shm::CqHeader* ring = nullptr;
    uint32_t capacity = 0;
    uint64_t channel = 0;
  };
  struct Qp {
    shm::WorkQueueHeader* send_ring = nullptr;
    uint32_t send_slots = 0;
    shm::WorkQueueHeader* recv_ring = nullptr;
    uint64_t send_cq = 0;
    uint64_t recv_cq = 0;
    uint32_t qpn = 0;
    uint32_t cookie = 0;
  };
  struct Srq {
    shm::WorkQueueHeader* ring = nullptr;
    uint32_t slot_count = 0;
    uint32_t max_wr = 0;
    uint32_t max_sge = 0;
    uint32_t limit = 0;
  };
  struct Id {
    uint64_t channel = 0;
    uint32_t generation = 0;
    uint32_t reported = 0;
  };

  // The answer of the session's object; false: not a method of SRQs, address handles or windows.
  bool AnswerNewer(const std::string& method, const google::protobuf::MessageLite& request,
                   google::protobuf::MessageLite* reply);
  absl::Status Call(const std::string& method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* reply);
  void SendDescriptor(uint64_t tag, v1::DescriptorKind kind, int fd);
  // Makes a pipe, sends its read end and keeps the write end under `handle`.
  uint64_t SendPipe(uint64_t handle, v1::DescriptorKind kind);
  std::byte* AllocateRing(uint64_t bytes, uint32_t slot_count, v1::QueueLocation* location);

  mutable std::recursive_mutex mutex_;
  bool dead_ = false;
  UniqueFd socket_;         // the daemon's end
  UniqueFd client_socket_;  // until attached
  UniqueFd control_fd_;
  UniqueFd engine_page_fd_;
  UniqueFd wake_read_;
  UniqueFd wake_write_;
  UniqueFd async_write_;
  UniqueFd async_read_;
  Mapping control_;
  Mapping engine_page_;
  UniqueFd arena_fd_;
  Mapping arena_;
  uint64_t arena_used_ = 0;
  bool arena_sent_ = false;

  uint64_t next_handle_ = 1;
  uint64_t next_tag_ = 1;
  std::map<uint64_t, UniqueFd> pipes_;  // write ends, by handle of the channel
  std::map<uint64_t, Cq> cqs_;
  std::map<uint64_t, Qp> qps_;
  std::map<uint64_t, Srq> srqs_;
  std::map<uint64_t, Id> ids_;
  v1::QueryDevicesReply devices_;
  bool connections_over_ = false;
  std::map<std::string, std::string> requests_;  // serialized
  std::map<std::string, int> calls_;
  std::map<std::string, absl::Status> failures_;
};

}  // namespace rdmad::sdk::testing
