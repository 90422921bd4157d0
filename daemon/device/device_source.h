// Where devices come and go while the daemon runs.
//
// Thread: control, all of it. Owner: main.
#pragma once

#include <functional>

#include "daemon/device/device.h"

namespace rdmad::device {

class DeviceSource {
 public:
  struct Observer {
    std::function<void(Device&)> on_added;
    // It answers that it is gone from now on. The reference is good during the call, and after it for who has a Context.
    std::function<void(Device&)> on_removed;
    // kPortActive, kPortErr, kGidChange or kDeviceFatal; what changed can be asked of the device. May be empty.
    std::function<void(Device&, AsyncEventType)> on_event;
  };

  virtual ~DeviceSource() = default;
  // Whatever came or went before is not told.
  virtual void SetObserver(Observer observer) = 0;
  virtual int poll_fd() const noexcept = 0;  // readable (level) when Poll() has work
  virtual void Poll() = 0;
};

}  // namespace rdmad::device
