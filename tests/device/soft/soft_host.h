// One daemon's worth of soft device in a test, over real sockets: what main() wires up, without an
// engine and a control thread. Whoever calls Turn() is both.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/device/device.h"
#include "daemon/device/soft/net_config.h"
#include "daemon/device/soft/qpn_allocator.h"
#include "daemon/device/soft/soft_data_path.h"
#include "daemon/device/soft/soft_devices.h"
#include "daemon/device/soft/soft_mad_io.h"
#include "daemon/device/soft/stray_ring.h"

namespace rdmad::soft::testing {

device::TimeNs MonotonicNow();

// An engine that does at once, and answers at once, what it is asked.
SoftDevicesHooks EngineOfThisThread();

class WcRecorder : public device::CompletionSink {
 public:
  void OnCompletion(const device::Wc& wc) noexcept override { all.push_back(wc); }
  std::vector<device::Wc> all;
};

struct SoftHostOptions {
  bool local_path = true;  // off: QPs of one engine use the socket, too
  uint32_t engines = 1;
  bool steer = true;  // off: see UdpSocketOptions
  // Off: engines have threads of their own, and call ActivatePorts() and DeactivatePorts() there.
  bool one_thread = true;
};

class SoftHost : private device::AsyncSink {
 public:
  // Addresses or interface names as in SoftDevicesConfig.
  SoftHost(const std::vector<std::string>& only, uint16_t udp_port,
           const SoftHostOptions& options = {});
  ~SoftHost() override;

  void ActivatePorts(uint32_t engine);
  void DeactivatePorts(uint32_t engine);
  // One turn of each engine.
  int Turn() {
    int work = 0;
    for (const auto& each : paths) work += each->DoWork(MonotonicNow());
    return work;
  }

  SoftDevice& device(size_t index = 0) { return *devices->devices()[index]; }
  // Of `values`; fails the caller loudly if there is none of that name.
  static uint64_t Value(const std::vector<device::CounterValue>& values, const std::string& name);
  uint64_t Counter(const std::string& name) { return Value(device().Counters(), name); }
  uint64_t SharedCounter(const std::string& name) { return Value(devices->SharedCounters(), name); }

  std::unique_ptr<SoftMadIo> mads;
  std::vector<std::unique_ptr<StrayRing>> rings;
  std::vector<std::unique_ptr<SoftDataPath>> paths;  // by engine
  SoftDataPath* path = nullptr;                      // the first
  QpnAllocator qpns;
  std::unique_ptr<SoftDevices> devices;
  std::vector<device::AsyncEvent> events;

 private:
  void OnAsyncEvent(const device::AsyncEvent& event) noexcept override { events.push_back(event); }

  const SoftHostOptions options_;
};

// An RC QP with PD, CQs and one registered buffer, in kReset until Connect().
class RcEnd {
 public:
  RcEnd(SoftHost& host, size_t buffer_bytes, size_t device_index = 0, uint32_t engine = 0);
  ~RcEnd();
  RcEnd(const RcEnd&) = delete;
  RcEnd& operator=(const RcEnd&) = delete;

  // Moves both QPs to kRts. `sgid_index` is of either device.
  static void Connect(RcEnd& a, RcEnd& b, device::Mtu mtu, uint32_t sgid_index = 0);

  // One half of Connect(), for ends that belong to different threads.
  void ConnectTo(const RcEnd& peer, device::Mtu mtu, uint32_t sgid_index = 0);

  device::PostResult Send(device::WrOpcode opcode, size_t offset, uint32_t bytes,
                          const RcEnd* remote = nullptr, size_t remote_offset = 0);
  device::PostResult Recv(size_t offset, uint32_t bytes);
  void FillRandomly(uint32_t seed);

  SoftHost& host;
  std::vector<std::byte> buffer;
  WcRecorder sends;
  WcRecorder receives;
  std::unique_ptr<device::Pd> pd;
  std::unique_ptr<device::Cq> send_cq;
  std::unique_ptr<device::Cq> recv_cq;
  std::unique_ptr<device::Mr> mr;
  std::unique_ptr<device::Qp> qp;

 private:
  IpAddress address(uint32_t sgid_index) const;

  size_t device_index_;
  uint64_t next_wr_id_ = 1;
};

// Turns all hosts until `done()` or five seconds have gone by. Was it done?
template <typename Done>
bool TurnUntil(std::initializer_list<SoftHost*> hosts, Done done) {
  const device::TimeNs deadline = MonotonicNow() + 5'000'000'000;
  while (!done()) {
    for (SoftHost* host : hosts) host->Turn();
    if (MonotonicNow() > deadline) return done();
  }
  return true;
}

}  // namespace rdmad::soft::testing
