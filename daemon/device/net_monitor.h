// Says when it is time to look at the host's network again: after the kernel has told of a change,
// and when somebody asked for another look.
//
// What the kernel tells (rtnetlink: interfaces and addresses) is a hint to look and nothing more:
// messages may be lost when many come, and who reads the whole state anyway cannot get out of step.
// Changes come in bursts, so the look waits until a burst has had time to end; not for ever,
// though: it never comes later than `kSettleNs` after the first message. While nothing changes and
// nobody asked, nothing wakes the process.
//
// Thread: control. Owner: SoftDevices, VerbsDevices. Source: rtnetlink(7), netlink(7), timerfd_create(2).
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::device {

class NetMonitor {
 public:
  static constexpr int64_t kSettleNs = 20'000'000;

  // Of the network namespace of the calling thread. Errors: the kernel's.
  static absl::StatusOr<NetMonitor> Open();

  // Readable (level) when Take() has something to do.
  [[nodiscard]] int fd() const noexcept { return epoll_fd_.get(); }
  // Takes what there is. True: look now.
  bool Take();
  // Take() will say so after this long at the latest.
  void LookIn(int64_t ns);

 private:
  NetMonitor(UniqueFd epoll_fd, UniqueFd netlink_fd, UniqueFd timer_fd)
      : epoll_fd_(std::move(epoll_fd)),
        netlink_fd_(std::move(netlink_fd)),
        timer_fd_(std::move(timer_fd)) {}

  bool TakeMessages();

  UniqueFd epoll_fd_;
  UniqueFd netlink_fd_;
  UniqueFd timer_fd_;
};

}  // namespace rdmad::device
