// An address handle at an engine: while it is active, posts of its session find it by its number.
#pragma once

#include "daemon/engine/engine_context.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_port.h"

namespace rdmad::engine {

class ShmAhPort final : public AhPort, public TableHook<ShmAhPort, AhTag> {
 public:
  ShmAhPort(EngineContext& context, const AhPortInit& init)
      : context_(context),
        key_(static_cast<ShmSessionPort*>(init.session)->KeyOfAh(init.slot_handle)),
        ah_(*init.ah) {}

  void Activate(device::TimeNs) noexcept override { context_.ahs.Insert(*this, key_); }
  void Deactivate(device::TimeNs) noexcept override { context_.ahs.Remove(*this); }
  const device::Ah& ah() const noexcept { return ah_; }

 private:
  EngineContext& context_;
  const uint64_t key_;
  const device::Ah& ah_;
};

// Null if the session has no such handle.
inline const device::Ah* FindAh(EngineContext& context, const ShmSessionPort& session,
                                uint32_t slot_handle) noexcept {
  const ShmAhPort* const port = context.ahs.Find(session.KeyOfAh(slot_handle));
  return port == nullptr ? nullptr : &port->ah();
}

}  // namespace rdmad::engine
