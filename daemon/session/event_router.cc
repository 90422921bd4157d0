#include "daemon/session/event_router.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/session/session.h"

namespace rdmad::session {

uint64_t EventRouter::Register(Session* session, Handle handle) {
  targets_.emplace(++last_token_, Target{session, handle});
  return last_token_;
}

const EventRouter::Target* EventRouter::Find(uint64_t token) const {
  auto found = targets_.find(token);
  return found == targets_.end() ? nullptr : &found->second;
}

void EventRouter::OnQpAsyncEvent(const device::AsyncEvent& event) {
  const Target* target = Find(event.owner_token);
  if (target != nullptr) target->session->OnAsyncEvent(target->handle, event.type);
}

void EventRouter::OnSessionCorrupt(uint64_t session_token, const char* what) {
  const Target* target = Find(session_token);
  if (target != nullptr) target->session->OnCorrupt(what);
}

void EventRouter::OnCqOverrun(uint64_t cq_token) {
  const Target* target = Find(cq_token);
  if (target != nullptr) target->session->OnCqOverrun(target->handle);
}

}  // namespace rdmad::session
