// Ports: the engine's side of what a session owns, as the session sees it.
//
// A port ties shared memory that a client can scribble on to an object of a device. The session
// makes ports with EngineProxy::Create...Port(), hands them to the engine with Activate(), takes
// them back with Deactivate(), and destroys them once that is answered. Order:
//   activate    SessionPort, ChannelPort, CqPort (then the device's Cq), device Qp, QueuePairPort
//   deactivate  the other way round; a port before what its Init names
// All ports of one SessionPort live on its engine; a session has one for each engine that it uses.
// Everything named in an Init outlives the port.
//
// Thread: constructed, read (Counters) and destroyed by control; everything else is the engine's.
// Owner: Session.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/base/unique_fd.h"
#include "daemon/device/device.h"
#include "proto/shm/doorbell.h"

namespace rdmad::engine {

inline constexpr uint32_t kMaxAhs = 1u << 20;  // of a session
inline constexpr size_t kWcStatusCount = 24;  // ibv_wc_status has 0..23

// What the engine did for one session since it was attached.
struct SessionCounters {
  uint64_t send_wrs = 0;     // taken from SQs
  uint64_t recv_wrs = 0;     // taken from RQs and SRQs
  uint64_t send_bytes = 0;   // payload named by the send WRs taken
  uint64_t recv_bytes = 0;   // byte_len of receive completions
  uint64_t completions = 0;  // written to CQs
  uint64_t completion_errors = 0;
  uint64_t completions_dropped = 0;  // for a CQ that had overrun
  uint64_t malformed_wrs = 0;        // WRs that no correct library posts
  uint64_t corrupt_rings = 0;        // indices that make no sense
  uint64_t doorbells = 0;            // queues found rung
  uint64_t channel_events = 0;       // CompletionEvents written
  uint64_t channel_full = 0;         // times that one had to wait for room in its pipe
  std::array<uint64_t, kWcStatusCount> completions_by_status{};

  SessionCounters& operator+=(const SessionCounters& other) noexcept {
    send_wrs += other.send_wrs;
    recv_wrs += other.recv_wrs;
    send_bytes += other.send_bytes;
    recv_bytes += other.recv_bytes;
    completions += other.completions;
    completion_errors += other.completion_errors;
    completions_dropped += other.completions_dropped;
    malformed_wrs += other.malformed_wrs;
    corrupt_rings += other.corrupt_rings;
    doorbells += other.doorbells;
    channel_events += other.channel_events;
    channel_full += other.channel_full;
    for (size_t i = 0; i < kWcStatusCount; ++i) {
      completions_by_status[i] += other.completions_by_status[i];
    }
    return *this;
  }
};

class SessionPort : public device::EngineObject {
 public:
  // Any thread.
  virtual SessionCounters Counters() const noexcept = 0;
};

struct SessionPortInit {
  shm::ControlSegment* control = nullptr;
  UniqueFd wake_fd;            // read end of the wake pipe; becomes non-blocking
  uint64_t session_token = 0;  // comes back in OnSessionCorrupt
};

// A completion channel: the write end of its pipe, which ports on other engines may have, too.
class ChannelPort : public device::EngineObject {};

struct ChannelPortInit {
  SessionPort* session = nullptr;
  UniqueFd write_fd;  // becomes non-blocking
};

// Give it to Device::CreateCq() as the sink.
class CqPort : public device::EngineObject, public device::CompletionSink {};

struct CqPortInit {
  SessionPort* session = nullptr;
  ChannelPort* channel = nullptr;  // or none
  std::byte* ring = nullptr;       // CqHeader and entries, zeroed; see shm::CqBytes()
  uint32_t capacity = 0;           // entries, a power of two
  uint64_t cq_handle = 0;          // what the client knows it by: CompletionEvent::cq_handle
  uint64_t cq_token = 0;           // comes back in OnCqOverrun
};

// A work queue in an arena.
struct WorkRing {
  std::byte* addr = nullptr;  // WorkQueueHeader and slots, zeroed; see shm::WorkQueueBytes()
  uint32_t slot_count = 0;    // a power of two
};

class QueuePairPort : public device::EngineObject {};

struct QueuePairPortInit {
  SessionPort* session = nullptr;
  device::Qp* qp = nullptr;
  const device::Pd* pd = nullptr;  // that of `qp`; its sends find the address handles of the same
  CqPort* send_cq = nullptr;
  CqPort* recv_cq = nullptr;
  WorkRing send_ring;
  WorkRing recv_ring;  // addr null with an SRQ
  uint32_t doorbell_index = 0;
  // The same as QpInit::owner_token; unique among the QPs and SRQs of an engine.
  uint64_t owner_token = 0;
};

class SrqPort : public device::EngineObject {};

struct SrqPortInit {
  SessionPort* session = nullptr;
  device::Srq* srq = nullptr;
  WorkRing ring;
  uint32_t doorbell_index = 0;
  uint64_t owner_token = 0;  // the same as SrqInit::owner_token
};

// Makes an address handle known to the session's posts, by a number.
class AhPort : public device::EngineObject {};

struct AhPortInit {
  SessionPort* session = nullptr;
  const device::Ah* ah = nullptr;
  const device::Pd* pd = nullptr;  // that of `ah`
  uint32_t slot_handle = 0;        // 1..kMaxAhs, unique in the session; what WorkSlot::ah_handle says
};

}  // namespace rdmad::engine
