// Connection managers in the simulation: hosts whose messages get lost, doubled, delayed and, for a
// while, stopped altogether, and applications that connect, answer, part and go as they like.
//
// Every id that asked for something hears of exactly one end of it, and every request reaches a
// listener once at most; what both sides say of a connection is the same, and what they tell each
// other arrives as it was; a QP number that rested as the device lets it rest is never taken for
// that of an old connection. What is sent again is bounded, and in the end nothing is left: no
// connection, no question, no request, no port.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/soft/qpn_allocator.h"
#include "tests/device/soft/cm/cm_testing.h"
#include "tests/sim/random.h"
#include "tests/sim/sim.h"
#include "tests/sim/verdict.h"

namespace rdmad::sim {

class CmWorld {
 public:
  explicit CmWorld(const SimOptions& options);

  SimResult Run();

 private:
  static constexpr size_t kHosts = 3;

  // One application that asks, and whoever answered.
  struct Call {
    uint32_t number = 0;
    size_t from = 0;
    bool datagram = false;
    bool begun = false;       // it has asked
    bool shares_qpn = false;  // with another, so that one may be taken for the other's remains
    uint32_t qpn = 0;
    std::unique_ptr<soft::TestId> client;
    soft::TestId* server = nullptr;  // its listener's
    uint32_t requests = 0;
    bool answered = false;
    bool accepted = false;
    bool rejected = false;
  };
  struct Service {
    std::unique_ptr<soft::TestId> listener;
    bool datagram = false;
  };

  void MakeWeather();
  void Listen(size_t host, bool datagram);
  void StartCall();
  void OnClientEvent(Call& call, soft::TestId& id, const soft::SeenEvent& event);
  void OnRequest(soft::TestId& request, const soft::SeenEvent& event);
  void Answer(Call& call);
  void Part(Call& call);
  void Act();
  void ChangeWeather();
  // Until nothing is under way any more.
  void ComeToRest(const char* when);
  void CheckAgreement();
  void EndAll();
  void CheckCall(const Call& call);
  void CheckNothingIsLeft();
  Call* PickCall();
  std::string Story(const Call& call) const;

  const SimOptions options_;
  Random random_;
  Verdict verdict_;
  soft::TestNet net_;
  soft::Faults weather_;
  bool partitioned_ = false;
  bool was_partitioned_ = false;
  soft::QpnAllocator qpns_;
  std::array<std::unique_ptr<soft::TestHost>, kHosts> hosts_;
  std::array<std::array<Service, 2>, kHosts> services_;       // connections, datagrams
  std::vector<std::unique_ptr<soft::TestId>> old_listeners_;  // their requests live on
  std::vector<std::unique_ptr<Call>> calls_;
  uint64_t messages_ = 0;
  uint64_t events_ = 0;
};

}  // namespace rdmad::sim
