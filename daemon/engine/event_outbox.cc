#include "daemon/engine/event_outbox.h"

#include <algorithm>
#include <bit>

#include "daemon/base/check.h"

namespace rdmad::engine {
namespace {

bool PushAsync(SpscRing<EngineEvent>& ring, const device::AsyncEvent& async) noexcept {
  EngineEvent event;
  event.kind = EngineEvent::Kind::kQpAsync;
  event.async = async;
  return ring.Push(event);
}

}  // namespace

void EventOutbox::OnAsyncEvent(const device::AsyncEvent& event) noexcept {
  if (EventSource* const source = by_token_.Find(event.owner_token)) {
    ReportQp(*source, event.type);
    return;
  }
  const auto end = strays_.begin() + static_cast<ptrdiff_t>(stray_count_);
  const bool known = std::any_of(strays_.begin(), end, [&event](const device::AsyncEvent& stray) {
    return stray.type == event.type && stray.owner_token == event.owner_token &&
           stray.qpn == event.qpn;
  });
  if (known) return;
  if (stray_count_ == strays_.size()) {
    dropped_.Add(1);
    return;
  }
  strays_[stray_count_++] = event;
}

void EventOutbox::RemoveObject(EventSource& source) noexcept {
  by_token_.Remove(source);
  source.Unlink();
  source.pending = 0;
}

void EventOutbox::ReportQp(EventSource& source, device::AsyncEventType type) noexcept {
  const uint32_t bit = static_cast<uint32_t>(type);
  if (bit >= 32) {
    dropped_.Add(1);  // verbs has no such event
    return;
  }
  source.pending |= 1u << bit;
  if (!source.linked()) unsaid_.PushBack(source);
}

void EventOutbox::Report(EventSource& source) noexcept {
  if (!source.linked()) unsaid_.PushBack(source);
}

bool EventOutbox::Flush(SpscRing<EngineEvent>& ring, uint32_t reserved_slots) noexcept {
  while (EventSource* const source = unsaid_.front()) {
    if (!FlushSource(*source, ring, reserved_slots)) return false;
    source->Unlink();
  }
  size_t said = 0;
  while (said < stray_count_ && ring.FreeSlots() > reserved_slots &&
         PushAsync(ring, strays_[said])) {
    ++said;
  }
  std::copy(strays_.begin() + static_cast<ptrdiff_t>(said),
            strays_.begin() + static_cast<ptrdiff_t>(stray_count_), strays_.begin());
  stray_count_ -= said;
  return stray_count_ == 0;
}

bool EventOutbox::FlushSource(EventSource& source, SpscRing<EngineEvent>& ring,
                              uint32_t reserved_slots) noexcept {
  if (source.kind != EngineEvent::Kind::kQpAsync) {
    if (ring.FreeSlots() <= reserved_slots) return false;
    EngineEvent event;
    event.kind = source.kind;
    event.token = source.token;
    event.what = source.what;
    return ring.Push(event);
  }
  while (source.pending != 0) {
    if (ring.FreeSlots() <= reserved_slots) return false;
    const auto type = static_cast<device::AsyncEventType>(std::countr_zero(source.pending));
    if (!PushAsync(ring, {type, source.token, source.qpn})) return false;
    source.pending &= source.pending - 1;
  }
  return true;
}

}  // namespace rdmad::engine
