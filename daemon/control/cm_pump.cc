#include "daemon/control/cm_pump.h"

#include <chrono>

#include "daemon/control/clock.h"

namespace rdmad::control {

CmPump::CmPump(boost::asio::io_context& loop, device::ConnectionManager* manager)
    : manager_(manager),
      watch_(loop, manager->poll_fd(), AsioFdWatch::For::kRead, [this] { Poll(); }),
      timer_(loop) {}

void CmPump::Poll() {
  manager_->Poll(MonotonicNs());
}

void CmPump::Rearm() {
  const device::TimeNs deadline = manager_->NextDeadline();
  if (deadline == armed_for_) return;
  armed_for_ = deadline;
  timer_.cancel();
  if (deadline == device::kNever) return;
  timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline)));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    armed_for_ = device::kNever;  // used up, whatever the next one is
    Poll();
  });
}

}  // namespace rdmad::control
