// Drives a connection manager from the event loop: when its descriptor is readable and when its
// deadline comes.
//
// Whatever runs on the control thread may move a deadline, so the loop calls Rearm() after each
// handler. The timer is set only while there is a deadline: an idle daemon has none.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/control/fd_watch.h"
#include "daemon/device/connection_manager.h"

namespace rdmad::control {

class CmPump {
 public:
  // `manager` outlives it.
  CmPump(boost::asio::io_context& loop, device::ConnectionManager* manager);
  CmPump(const CmPump&) = delete;
  CmPump& operator=(const CmPump&) = delete;

  void Rearm();

 private:
  void Poll();

  device::ConnectionManager* const manager_;
  AsioFdWatch watch_;
  boost::asio::steady_timer timer_;
  device::TimeNs armed_for_ = device::kNever;
};

}  // namespace rdmad::control
