// Events that an engine has for control, kept until the event ring has room for them.
//
// A host that loses its peer can see ten thousand QPs fail in one turn, and none of these events
// may get lost, nor may the engine wait or allocate. So an event is not a queued item but a mark on
// the object that it is about: each port carries an EventSource, and one that has something to say
// stands in a list. The same event twice before control has seen the first is one event. Events
// that belong to no port (of a QP that the session has not handed over yet, say) go to a small
// store whose overflow is counted.
//
// A source that is removed takes what it had not said along: after Deactivate's answer control
// hears nothing more of the object.
//
// Thread: engine. Owner: Engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "daemon/device/device.h"
#include "daemon/engine/engine_command.h"
#include "daemon/engine/intrusive_list.h"
#include "daemon/engine/intrusive_table.h"
#include "daemon/engine/relaxed_counter.h"
#include "daemon/engine/spsc_ring.h"

namespace rdmad::engine {

struct UnsaidTag;
struct TokenTag;

// What one object has to say. `kind` decides what `pending` means.
struct EventSource : ListHook<UnsaidTag>, TableHook<EventSource, TokenTag> {
  EngineEvent::Kind kind = EngineEvent::Kind::kQpAsync;
  uint64_t token = 0;          // of the session or CQ; the owner_token of a QP or SRQ
  uint32_t qpn = 0;            // kQpAsync
  uint32_t pending = 0;        // kQpAsync: a bit per AsyncEventType
  const char* what = nullptr;  // kSessionCorrupt
};

class EventOutbox final : public device::AsyncSink {
 public:
  // From a device, about a QP or SRQ known by its owner token.
  void OnAsyncEvent(const device::AsyncEvent& event) noexcept override;

  // Makes a QP's or SRQ's source findable by its token.
  void AddObject(EventSource& source) noexcept { by_token_.Insert(source, source.token); }
  void RemoveObject(EventSource& source) noexcept;
  // For sources of other kinds, when their object goes.
  void Remove(EventSource& source) noexcept { source.Unlink(); }

  void ReportQp(EventSource& source, device::AsyncEventType type) noexcept;
  // Of a session or CQ.
  void Report(EventSource& source) noexcept;

  // Moves what fits into `ring`, leaving `reserved_slots` of it free for answers. False if
  // something had to stay.
  bool Flush(SpscRing<EngineEvent>& ring, uint32_t reserved_slots) noexcept;

  bool empty() const noexcept { return unsaid_.empty() && stray_count_ == 0; }
  uint64_t dropped() const noexcept { return dropped_.Get(); }  // any thread

 private:
  bool FlushSource(EventSource& source, SpscRing<EngineEvent>& ring,
                   uint32_t reserved_slots) noexcept;

  IntrusiveList<EventSource, UnsaidTag> unsaid_;
  IntrusiveTable<EventSource, TokenTag> by_token_;
  std::array<device::AsyncEvent, 256> strays_;  // of no known source, oldest first
  size_t stray_count_ = 0;
  RelaxedCounter dropped_;
};

}  // namespace rdmad::engine
