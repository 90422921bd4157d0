#include "daemon/control/fd_watch.h"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <utility>

namespace rdmad::control {

using boost::asio::posix::stream_descriptor;

// Kept alive by the wait in flight, so that a watch may go at any time.
struct AsioFdWatch::State : std::enable_shared_from_this<AsioFdWatch::State> {
  State(boost::asio::io_context& loop, int fd, For for_what, std::function<void()> callback)
      : descriptor(loop, fd),
        what(for_what == For::kRead ? stream_descriptor::wait_read : stream_descriptor::wait_write),
        ready(std::move(callback)) {}
  // The descriptor is not ours to close.
  ~State() {
    if (descriptor.is_open()) descriptor.release();
  }

  void Arm() {
    descriptor.async_wait(what,
                          [self = shared_from_this()](const boost::system::error_code& error) {
                            if (self->stopped || error) return;
                            self->ready();
                            if (!self->stopped) self->Arm();
                          });
  }

  stream_descriptor descriptor;
  const stream_descriptor::wait_type what;
  const std::function<void()> ready;
  bool stopped = false;
};

AsioFdWatch::AsioFdWatch(boost::asio::io_context& loop, int fd, For what,
                         std::function<void()> ready)
    : state_(std::make_shared<State>(loop, fd, what, std::move(ready))) {
  state_->Arm();
}

AsioFdWatch::~AsioFdWatch() {
  state_->stopped = true;
  state_->descriptor.release();
}

}  // namespace rdmad::control
