// What control, session and cm see of an engine: a way to hand it objects and get answers.
//
// Commands travel through a bounded single-producer ring and are executed in order, each exactly once; answers come
// back through another ring and run as callbacks from Poll(). If the command ring is full, commands wait in a queue on
// the control side and are counted. Objects handed over (device objects, and the engine's own ports of port.h) are
// EngineObjects: after Activate's answer the engine uses them, after Deactivate's answer it never touches them again.
#pragma once

#include <cstdint>
#include <functional>

#include "daemon/device/device.h"

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
};

// Thread: control. Owner: the daemon.
class EngineProxy {
 public:
  using Done = std::function<void()>;
  using ModifyDone = std::function<void(device::QpResult)>;
  using QueryDone = std::function<void(const device::QpAttr&)>;

  virtual ~EngineProxy() = default;

  virtual void Activate(device::EngineObject& object, Done done) = 0;
  virtual void Deactivate(device::EngineObject& object, Done done) = 0;
  virtual void ModifyQp(device::Qp& qp, const device::QpAttr& attr, ModifyDone done) = 0;
  virtual void QueryQp(device::Qp& qp, QueryDone done) = 0;

  virtual uint32_t index() const noexcept = 0;
  virtual EngineStats Stats() const noexcept = 0;
  // Control's event loop calls Poll() when poll_fd() is readable; callbacks run inside.
  virtual int poll_fd() const noexcept = 0;
  virtual void Poll() = 0;
  virtual void SetEventSink(EngineEventSink* sink) noexcept = 0;
};

}  // namespace rdmad::engine
