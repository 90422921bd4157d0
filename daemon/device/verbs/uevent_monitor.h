// Hears from the kernel that RDMA devices came or went.
//
// A netlink socket in the kernel's own uevent group, so that no udev is needed. What comes in is a
// hint to look again and nothing more: an event may be lost, and its content is not trusted.
//
// Thread: control. Owner: VerbsDevices. Source: kobject_uevent(9), netlink(7).
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::verbs {

class UeventMonitor {
 public:
  // Errors: the kernel's.
  static absl::StatusOr<UeventMonitor> Open();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // Takes what there is; true if something of it is about RDMA devices (or was lost).
  bool Take();

 private:
  explicit UeventMonitor(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

// Whether a message ("add@/devices/...\0ACTION=add\0SUBSYSTEM=infiniband\0...") is about an RDMA
// device.
[[nodiscard]] bool IsAboutRdma(std::string_view message) noexcept;

}  // namespace rdmad::verbs
