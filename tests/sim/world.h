// The world of one simulation: hosts, network, weather, connections, and what happens next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/sim/datagrams.h"
#include "tests/sim/end.h"
#include "tests/sim/random.h"
#include "tests/sim/shared_receives.h"
#include "tests/sim/sim.h"
#include "tests/sim/unreliable.h"
#include "tests/sim/verdict.h"
#include "tests/support/fake_network.h"

namespace rdmad::sim {

class World {
 public:
  explicit World(const SimOptions& options);
  ~World();

  SimResult Run();

 private:
  struct Host : device::AsyncSink {
    void OnAsyncEvent(const device::AsyncEvent& event) noexcept override {
      if (event.owner_token == 0) return;  // a datagram or UC QP
      switch (event.type) {
        case device::AsyncEventType::kSqDrained:
          return reinterpret_cast<End*>(event.owner_token)->OnDrained();
        case device::AsyncEventType::kQpLastWqeReached:
          return reinterpret_cast<End*>(event.owner_token)->OnLastWqe();
        case device::AsyncEventType::kQpAccessErr:
          return reinterpret_cast<End*>(event.owner_token)->OnAccessError();
        case device::AsyncEventType::kSrqLimitReached:
          return reinterpret_cast<SharedReceives*>(event.owner_token)->OnLimit();
        default:
          return;
      }
    }
    IpAddress address;
    std::unique_ptr<soft::Transport> transport;
    bool at_home = true;  // its address is known as local, so that its QPs may find each other
  };

  // Two ends, or one that is connected to itself.
  struct Connection {
    std::vector<std::unique_ptr<End>> ends;
    Terms terms;
    bool chaotic = false;  // QPs are failed, reset, destroyed on the way
    bool late_rts = false;
    TimeNs doomed_at = device::kNever;  // when somebody notices that an end has failed
    TimeNs connect_at = device::kNever;
    uint32_t late_psn = 0;
    // Of the end of the simulation: what was completed, and since when that has not changed.
    uint64_t settled = 0;
    TimeNs settled_at = 0;
    End& first() const { return *ends.front(); }
    End& last() const { return *ends.back(); }
  };

  // world_make.cc
  void MakeWeather();
  void CheckMarkable(const soft::FakeNetwork::Sent& packet);
  bool SharesWith(const Host& host) const;
  void MakeHosts();
  void MakeSharedReceives();
  void MakeConnection(int number);
  void MakeDatagrams();
  void MakeUnreliable();
  Terms RandomTerms();

  void Connect(Connection& connection);
  void FinishConnect(Connection& connection);
  void Disturb(Connection& connection);
  void Close(Connection& connection);
  void LookAfter(Connection& connection);

  void Act();
  void ChangeWeather();
  void LetTimePass();
  void Drain();
  bool IsDone(Connection& connection);
  void CheckProgress(Connection& connection, TimeNs healed_at);
  void CheckRetransmissions();
  void CheckBaseline();
  uint64_t Counter(const char* name) const;
  TimeNs now() const { return network_->now(); }

  const SimOptions options_;
  Random random_;
  Verdict verdict_;
  Excuses excuses_;
  std::unique_ptr<soft::FakeNetwork> network_;
  soft::NetworkFaults weather_;  // when it is bad
  soft::TransportConfig config_;
  bool partitions_ = false;
  bool partitioned_ = false;
  bool disturbed_ = false;  // QPs were failed, regions withdrawn, addresses moved
  std::vector<std::unique_ptr<Host>> hosts_;
  std::unique_ptr<SharedReceives> shared_;  // in some worlds; its ends go before it
  std::vector<std::unique_ptr<Connection>> connections_;
  std::unique_ptr<Datagrams> datagrams_;    // in some worlds
  std::unique_ptr<Unreliable> unreliable_;  // the same
  uint32_t next_qpn_ = 0x10;
  uint64_t connects_ = 0;
};

}  // namespace rdmad::sim
