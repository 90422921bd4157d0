// Watches descriptors that others own, on the event loop.
//
// Level-triggered: the callback runs again and again while the descriptor stays ready. It may
// destroy the watch. A descriptor is watched once at a time, and closed only after its watch is
// gone.
//
// Thread: control.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "daemon/session/session_host.h"

namespace rdmad::control {

class AsioFdWatch final : public session::FdWatch {
 public:
  enum class For : uint8_t { kRead, kWrite };

  AsioFdWatch(boost::asio::io_context& loop, int fd, For what, std::function<void()> ready);
  ~AsioFdWatch() override;
  AsioFdWatch(const AsioFdWatch&) = delete;
  AsioFdWatch& operator=(const AsioFdWatch&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace rdmad::control
