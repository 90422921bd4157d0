// Two network namespaces that stand for two hosts, joined by a veth pair, or by two with a
// PacketWire between them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tests/support/net_namespace.h"
#include "tests/support/packet_wire.h"

namespace rdmad::testing {

struct TwoHostsOptions {
  int mtu_bytes = 1500;
  bool wire = false;          // with a PacketWire
  bool wire_packets = false;  // no batches, no unfinished checksums: see SendWirePackets(). With a
                              // wire always.
};

class TwoHosts {
 public:
  static constexpr char kInterface[] = "rd0";  // the same name on both

  static absl::StatusOr<std::unique_ptr<TwoHosts>> Create(const TwoHostsOptions& options = {});

  // Hosts are 0 and 1.
  [[nodiscard]] const NetNamespace& host(int index) const { return hosts_[index]; }
  [[nodiscard]] static std::string Ipv4(int index) {
    return index == 0 ? "10.77.0.1" : "10.77.0.2";
  }
  [[nodiscard]] static std::string Ipv6(int index) { return index == 0 ? "fd77::1" : "fd77::2"; }
  // Null without one.
  [[nodiscard]] PacketWire* wire() { return wire_.get(); }

 private:
  explicit TwoHosts(std::vector<NetNamespace> hosts) : hosts_(std::move(hosts)) {}

  std::vector<NetNamespace> hosts_;
  std::unique_ptr<PacketWire> wire_;
};

}  // namespace rdmad::testing
