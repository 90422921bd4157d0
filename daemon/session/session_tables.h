// How the parts of Session find, bring to life and bury what its tables hold.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/session/session.h"

namespace rdmad::session {

template <typename T, HandleKind kKind>
absl::StatusOr<T*> Session::Live(const HandleTable<T, kKind>& table, Handle handle) const {
  absl::StatusOr<T*> object = table.Get(handle);
  if (object.ok() && (*object)->phase != Phase::kLive) {
    return absl::NotFoundError(
        absl::StrCat(HandleText(kKind, handle),
                     (*object)->phase == Phase::kRetiring ? ": being destroyed" : ": not made yet"));
  }
  return object;
}

template <typename T, HandleKind kKind>
T* Session::MakeLive(const HandleTable<T, kKind>& table, Handle handle, const Done& done) {
  T* object = table.Find(handle);
  RD_CHECK(object != nullptr, "an object outlives its Activate");
  if (object->phase != Phase::kMaking) {
    done(absl::CancelledError("the session has ended"));
    return nullptr;
  }
  object->phase = Phase::kLive;
  return object;
}

template <typename T, HandleKind kKind>
void Session::Bury(HandleTable<T, kKind>& table, Handle handle) {
  std::unique_ptr<T> object = table.Remove(handle);
  RD_CHECK(object != nullptr, "an object is buried once");
  if (async_channel_ != nullptr) async_channel_->Drop(handle);
  const std::vector<std::function<void()>> on_gone = std::move(object->on_gone);
  object.reset();
  for (const std::function<void()>& callback : on_gone) callback();
}

}  // namespace rdmad::session
