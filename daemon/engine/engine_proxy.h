// What control, session and cm see of an engine: a way to hand it objects and get answers.
//
// Commands travel through a bounded single-producer ring and are executed in order, each exactly once; answers come
// back through another ring and run as callbacks from Poll(). If the command ring is full, commands wait in a queue on
// the control side and are counted. Objects handed over (device objects, and the engine's own ports of port.h) are
// EngineObjects: after Activate's answer the engine uses them, after Deactivate's answer it never touches them again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "daemon/device/device.h"
#include "daemon/engine/port.h"

namespace rdmad::engine {

// Where control hears of async events that no command asked for. Thread: control.
class EngineEventSink {
 public:
  virtual ~EngineEventSink() = default;
  virtual void OnQpAsyncEvent(const device::AsyncEvent& event) = 0;
  // The client of this session wrote nonsense into shared memory that is beyond one QP. `session_token` as given to the
  // SessionPort. The session must be closed.
  virtual void OnSessionCorrupt(uint64_t session_token, const char* what) = 0;
  // A CQ overran: its QPs are in error already.
  virtual void OnCqOverrun(uint64_t cq_token) = 0;
};

struct EngineStats {
  bool sleeping;
  uint64_t work_requests;
  uint64_t completions;
  uint64_t wakeups;     // returns from the wait
  uint64_t busy_ns;     // time spent in turns that did work
  uint64_t turns;
  uint64_t commands_delayed;      // waited on the control side because the command ring was full
  uint64_t events_delayed;        // turns that ended with events for which the event ring had no room
  uint64_t events_dropped;        // events of no known QP beyond what could be stored
};

// Thread: control. Owner: the daemon.
class EngineProxy {
 public:
  using Done = std::function<void()>;
  using ModifyDone = std::function<void(device::QpResult)>;
  using QueryDone = std::function<void(const device::QpAttr&)>;
  using LimitDone = std::function<void(uint32_t limit)>;

  virtual ~EngineProxy() = default;

  // Ports for this engine (port.h). They do not outlive the proxy.
  virtual std::unique_ptr<SessionPort> CreateSessionPort(SessionPortInit init) = 0;
  virtual std::unique_ptr<ChannelPort> CreateChannelPort(ChannelPortInit init) = 0;
  virtual std::unique_ptr<CqPort> CreateCqPort(const CqPortInit& init) = 0;
  virtual std::unique_ptr<QueuePairPort> CreateQueuePairPort(const QueuePairPortInit& init) = 0;
  virtual std::unique_ptr<SrqPort> CreateSrqPort(const SrqPortInit& init) = 0;
  virtual std::unique_ptr<AhPort> CreateAhPort(const AhPortInit& init) = 0;

  virtual void Activate(device::EngineObject& object, Done done) = 0;
  virtual void Deactivate(device::EngineObject& object, Done done) = 0;
  // When the QP enters RESET, what its rings hold unread is forgotten too.
  virtual void ModifyQp(device::Qp& qp, const device::QpAttr& attr, ModifyDone done) = 0;
  virtual void QueryQp(device::Qp& qp, QueryDone done) = 0;
  // What device::Qp::Known() says.
  virtual void ShowQp(device::Qp& qp, QueryDone done) = 0;
  virtual void SetSrqLimit(device::Srq& srq, uint32_t limit, ModifyDone done) = 0;
  virtual void QuerySrqLimit(device::Srq& srq, LimitDone done) = 0;  // the one that is armed

  virtual uint32_t index() const noexcept = 0;
  virtual EngineStats Stats() const noexcept = 0;
  // The segment of this engine's shm::EnginePage, for clients to map read-only. Stays owned by the engine.
  virtual int engine_page_fd() const noexcept = 0;
  virtual uint64_t engine_page_bytes() const noexcept = 0;
  // Control's event loop calls Poll() when poll_fd() is readable; callbacks run inside.
  virtual int poll_fd() const noexcept = 0;
  virtual void Poll() = 0;
  virtual void SetEventSink(EngineEventSink* sink) noexcept = 0;
};

}  // namespace rdmad::engine
