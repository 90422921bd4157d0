// A descriptor to wait on for who also has work that the kernel knows nothing of: readable while
// another descriptor is, and after Kick() until Clear().
//
// Thread: control. Owner: a connection manager.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::device {

class WakeFd {
 public:
  // `watched_fd` outlives it; -1: there is none. Errors: those of the kernel, with their errno.
  static absl::StatusOr<WakeFd> Create(int watched_fd);

  // Watches one more; it outlives this, or is closed first.
  absl::Status Watch(int fd);
  // Epoll of the watched descriptor and our own; an epoll can be polled like anything else.
  [[nodiscard]] int fd() const noexcept { return epoll_.get(); }
  void Kick() noexcept;
  // Takes all kicks back.
  void Clear() noexcept;

 private:
  WakeFd(UniqueFd epoll, UniqueFd event) noexcept
      : epoll_(std::move(epoll)), event_(std::move(event)) {}

  UniqueFd epoll_;
  UniqueFd event_;
  bool kicked_ = false;
};

}  // namespace rdmad::device
