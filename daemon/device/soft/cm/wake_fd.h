// The connection manager's poll_fd(): readable while MADs wait at the MadIo, or after Kick().
//
// Thread: control. Owner: SoftConnectionManager.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::soft {

class WakeFd {
 public:
  // `mad_fd` is watched too; -1: there is none. Errors: those of the kernel, with their errno.
  static absl::StatusOr<WakeFd> Create(int mad_fd);

  // Epoll of the MADs' descriptor and our own; an epoll can be polled like anything else.
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

}  // namespace rdmad::soft
