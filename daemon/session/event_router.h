// Leads what engines report by themselves to the session it is about.
//
// Engines know QPs, CQs and sessions by tokens. A token is drawn once and never again, so an event
// that was already on its way when its object was destroyed finds nobody, rather than the object's
// successor.
//
// Thread: control. Owner: Daemon; it outlives sessions and engines.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "daemon/engine/engine_proxy.h"
#include "daemon/session/handle_table.h"

namespace rdmad::session {

class Session;

class EventRouter final : public engine::EngineEventSink {
 public:
  // A new token that leads to the object `handle` of `session`, or to the session itself with
  // kNoHandle.
  uint64_t Register(Session* session, Handle handle);
  void Forget(uint64_t token) { targets_.erase(token); }
  [[nodiscard]] size_t count() const noexcept { return targets_.size(); }

  void OnQpAsyncEvent(const device::AsyncEvent& event) override;
  void OnSessionCorrupt(uint64_t session_token, const char* what) override;
  void OnCqOverrun(uint64_t cq_token) override;

 private:
  struct Target {
    Session* session;
    Handle handle;
  };
  const Target* Find(uint64_t token) const;

  uint64_t last_token_ = 0;
  std::unordered_map<uint64_t, Target> targets_;
};

// A registration that ends with its owner. Move-only.
class EventToken {
 public:
  EventToken() = default;
  EventToken(EventRouter* router, Session* session, Handle handle)
      : router_(router), value_(router->Register(session, handle)) {}
  EventToken(EventToken&& other) noexcept
      : router_(std::exchange(other.router_, nullptr)), value_(other.value_) {}
  EventToken& operator=(EventToken&& other) noexcept {
    if (this != &other) {
      if (router_ != nullptr) router_->Forget(value_);
      router_ = std::exchange(other.router_, nullptr);
      value_ = other.value_;
    }
    return *this;
  }
  EventToken(const EventToken&) = delete;
  EventToken& operator=(const EventToken&) = delete;
  ~EventToken() {
    if (router_ != nullptr) router_->Forget(value_);
  }

  [[nodiscard]] uint64_t value() const noexcept { return value_; }

 private:
  EventRouter* router_ = nullptr;
  uint64_t value_ = 0;
};

}  // namespace rdmad::session
