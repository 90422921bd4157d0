// A session at an engine: its doorbells, its wake pipe and its counters.
//
// The engine asks each session once per turn which of its queues were rung; that costs one cache
// line per 4,096 queues while nothing is rung.
#pragma once

#include <cstdint>

#include "daemon/engine/ah_table.h"
#include "daemon/engine/doorbell_table.h"
#include "daemon/engine/engine_context.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_counters.h"

namespace rdmad::engine {

class ShmSessionPort final : public SessionPort, public Waitable, public ListHook<SessionTag> {
 public:
  ShmSessionPort(EngineContext& context, SessionPortInit init);

  void Activate(device::TimeNs now) noexcept override;
  void Deactivate(device::TimeNs now) noexcept override;
  SessionCounters Counters() const noexcept override { return counters_.Snapshot(); }

  // Takes the doorbells that are rung and puts their sources into the active list. Returns how
  // many.
  uint32_t CollectDoorbells() noexcept;
  // Whether something is rung; the last look before the engine sleeps, see doorbell.h.
  bool AnyDoorbell() const noexcept;

  // The client wrote nonsense that is beyond one QP: control is told, once. `what` is a literal.
  void MarkCorrupt(const char* what) noexcept;

  // A byte in the wake pipe, or its end.
  void OnReady(uint32_t events) noexcept override;

  DoorbellTable& doorbells() noexcept { return doorbells_; }
  AhTable& ahs() noexcept { return ahs_; }
  LiveSessionCounters& counters() noexcept { return counters_; }

 private:
  uint32_t used_summary_words() const noexcept { return (doorbells_.used_words() + 63) / 64; }
  uint32_t CollectWord(uint32_t word) noexcept;

  EngineContext& context_;
  shm::ControlSegment* const control_;
  const UniqueFd wake_fd_;
  DoorbellTable doorbells_;
  AhTable ahs_;
  EventSource corrupt_event_;
  bool corrupt_ = false;
  LiveSessionCounters counters_;
};

}  // namespace rdmad::engine
