// What an engine sleeps on: an epoll set of descriptors, each with someone to call when it is
// ready.
//
// Thread: engine (construction: any). Owner: Engine.
#pragma once

#include <cstdint>

#include "daemon/base/unique_fd.h"
#include "daemon/device/types.h"

namespace rdmad::engine {

class Waitable {
 public:
  virtual ~Waitable() = default;
  // `events`: EPOLL... bits. May add and remove itself, not others.
  virtual void OnReady(uint32_t events) noexcept = 0;
};

class WaitSet {
 public:
  WaitSet();

  // False if the kernel refused to make or to extend the set.
  bool valid() const noexcept { return epoll_.valid(); }
  // `waitable` may be null: being ready then only ends the wait. It stays until Remove().
  [[nodiscard]] bool Add(int fd, uint32_t events, Waitable* waitable) noexcept;
  [[nodiscard]] bool Modify(int fd, uint32_t events, Waitable* waitable) noexcept;
  void Remove(int fd) noexcept;

  // Waits until a descriptor is ready or `timeout_ns` has passed (kNever: no limit; 0: only looks),
  // and calls whom it concerns. Returns how many were ready.
  int Wait(device::TimeNs timeout_ns) noexcept;

 private:
  UniqueFd epoll_;
  bool has_nanoseconds_ = true;  // epoll_pwait2: since Linux 5.11
};

}  // namespace rdmad::engine
