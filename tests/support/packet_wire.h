// A wire between two interfaces that loses, repeats, reorders and alters RoCE packets as a test
// says, by a seed. Unlike tc-netem it needs no kernel module, does the same in each run and can
// change bytes.
//
//   namespace of host A          namespace of the wire          namespace of host B
//      veth ─────────────────► near end  ─ PacketWire ─  far end ◄───────────────── veth
//
// A thread forwards Ethernet frames by two packet sockets. Only UDP packets to port 4791 are
// tampered with: ARP, neighbour discovery and all else pass.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "tests/support/bottleneck.h"
#include "tests/support/net_namespace.h"

namespace rdmad::testing {

// Probabilities of 0 to 1, in both directions.
struct WireFaults {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;  // held back until a few later packets have passed, or 2 ms
  uint64_t seed = 1;
};

enum class WireDirection : uint8_t { kAToB, kBToA };
enum class WireVerdict : uint8_t { kPass, kDrop };

// Sees, and may change, each RoCE packet before the faults apply: `ip` begins with the IP header.
// Checksums must be right afterwards. Thread: the wire's.
using WireHook = std::function<WireVerdict(WireDirection direction, std::span<uint8_t> ip)>;

// Of RoCE packets.
struct WireCounts {
  uint64_t seen = 0;  // that the hosts sent
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
};

// Owner: the test. Stops when destroyed.
class PacketWire {
 public:
  static absl::StatusOr<std::unique_ptr<PacketWire>> Start(const NetNamespace& network,
                                                           const std::string& near_interface,
                                                           const std::string& far_interface);
  ~PacketWire();
  PacketWire(const PacketWire&) = delete;
  PacketWire& operator=(const PacketWire&) = delete;

  // Thread: any; takes effect with the next packet.
  void SetFaults(const WireFaults& faults);
  void SetHook(WireHook hook);
  // All that goes from A to B passes it from now on.
  void SetBottleneck(const BottleneckOptions& options);
  [[nodiscard]] BottleneckCounts bottleneck_counts() const;
  [[nodiscard]] WireCounts counts() const;

 private:
  struct Held {
    std::vector<uint8_t> frame;
    int behind = 0;  // packets that are still to pass before it
    int64_t until_ns = 0;
  };

  PacketWire(UniqueFd near, UniqueFd far, UniqueFd stop);
  void Run();
  void Forward(WireDirection direction, std::span<uint8_t> frame);
  void Send(WireDirection direction, std::span<const uint8_t> frame);
  void SendNow(WireDirection direction, std::span<const uint8_t> frame);
  int64_t WaitNs() const;
  void Release(WireDirection direction, bool one_passed);
  bool Chance(double probability);

  const std::array<UniqueFd, 2> sockets_;  // by the direction that reads it
  const UniqueFd stop_;
  mutable std::mutex mutex_;  // of all that follows
  WireFaults faults_;
  WireHook hook_;
  WireCounts counts_;
  std::optional<Bottleneck> bottleneck_;
  std::mt19937_64 random_;
  std::array<std::vector<Held>, 2> held_;
  std::thread thread_;
};

}  // namespace rdmad::testing
