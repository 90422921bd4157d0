// Queue pairs of the soft device that a test wires by hand, without rdma_cm.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdmad/rdmad.h"

namespace rdmad::testing {

// What two ends tell each other before they can talk.
struct QpAddress {
  std::array<uint8_t, 16> gid = {};
  uint32_t qpn = 0;
  uint32_t psn = 0;
};

// What an address vector says beside the addresses.
struct Route {
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
};

// A protection domain on the device that has `address`, and memory with every right.
struct OurHost {
  static absl::StatusOr<OurHost> Open(const Client& client, Pool& pool, const std::string& address, size_t bytes);

  Sge At(size_t offset, size_t bytes) const {
    return {reinterpret_cast<uint64_t>(buffer.data() + offset), static_cast<uint32_t>(bytes), mr.lkey()};
  }

  DeviceInfo device;
  Gid gid;
  ProtectionDomain pd{nullptr};
  Buffer buffer;
  MemoryRegion mr;
};

struct OurQp {
  static absl::StatusOr<OurQp> Open(const Client& client, const OurHost& host, QpType type,
                                    const SharedReceiveQueue& srq = {});

  QpAddress Describe(const OurHost& host) const { return {host.gid.raw, qp.qpn(), psn}; }
  // Reset to RTS. A UD QP needs no peer.
  absl::Status Connect(const OurHost& host, const QpAddress& peer, Mtu mtu);
  // The first steps of it, and the last one.
  absl::Status ToRtr(const OurHost& host, const QpAddress& peer, Mtu mtu);
  absl::Status ToRts();
  // Posts one work request and waits for its completion, which may be one in error.
  absl::StatusOr<Wc> Do(const SendWr& wr);
  absl::StatusOr<Wc> NextReceive(absl::Duration patience = absl::Seconds(120));
  // What was posted is with the device. A sender that nobody makes wait (UC, UD) may be faster than the engine that takes a
  // receive from the ring.
  absl::Status AwaitPosted() const { return qp.Query().status(); }

  CompletionChannel channel{nullptr};  // of `receives`
  CompletionQueue sends, receives;
  QueuePair qp;
  uint32_t psn = 0xfffffe;  // wraps soon
  uint32_t qkey = 0x11111111;
  uint8_t rnr_retry = 7;
  Route route;
};

}  // namespace rdmad::testing
