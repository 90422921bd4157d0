// One address of a soft device: its UDP ports, on their way into and out of the engines' data paths.
//
// Every engine has a port of its own on the address, which sends what its QPs send and receives what
// is for them. Control sends MADs from the first engine's.
//
// Thread: control creates and destroys it; the engines do the rest. Owner: SoftDevice.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/device.h"
#include "daemon/device/soft/soft_data_path.h"
#include "daemon/device/soft/udp_port.h"
#include "daemon/device/soft/udp_port_group.h"

namespace rdmad::soft {

class SoftPort {
 public:
  // `paths` are the engines', by their index, as many as `group` has ports. They outlive it.
  SoftPort(const std::vector<SoftDataPath*>& paths, std::unique_ptr<UdpPortGroup> group)
      : group_(std::move(group)) {
    for (uint32_t engine = 0; engine < group_->size(); ++engine) {
      parts_.push_back(std::make_unique<Part>(*paths[engine], group_->port(engine)));
    }
  }

  [[nodiscard]] const IpAddress& local() const noexcept { return udp().local(); }
  [[nodiscard]] UdpPort& udp(uint32_t engine = 0) const noexcept { return group_->port(engine); }
  [[nodiscard]] uint32_t engines() const noexcept { return group_->size(); }
  // What each engine activates and deactivates.
  [[nodiscard]] std::vector<device::EnginePart> parts() const {
    std::vector<device::EnginePart> all;
    for (uint32_t engine = 0; engine < parts_.size(); ++engine) {
      all.push_back({engine, parts_[engine].get()});
    }
    return all;
  }

 private:
  class Part final : public device::EngineObject {
   public:
    Part(SoftDataPath& path, UdpPort& udp) : path_(path), udp_(udp) {}
    void Activate(TimeNs) noexcept override { path_.AddPort(&udp_); }
    void Deactivate(TimeNs) noexcept override { path_.RemovePort(&udp_); }

   private:
    SoftDataPath& path_;
    UdpPort& udp_;
  };

  const std::unique_ptr<UdpPortGroup> group_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace rdmad::soft
