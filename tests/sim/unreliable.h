// A UC connection in the simulation.
//
// Messages may get lost, and nobody hears of it; but what completes a receive is one whole message
// of the peer's, once, or twice if the network doubles it. They come in their order, unless the
// network changes it. A WRITE may leave a part of itself, but no byte that it does not name
// changes; over a network that does nothing wrong it is there in full. A send that fails at this
// end flushes those behind it, and receiving goes on. A side may draw its receives from a queue
// that connections share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/transport.h"
#include "tests/sim/arena.h"
#include "tests/sim/random.h"
#include "tests/sim/records.h"
#include "tests/sim/shared_receives.h"
#include "tests/sim/verdict.h"

namespace rdmad::sim {

class Unreliable {
 public:
  struct Place {
    soft::Transport* transport;
    IpAddress address;
    SharedReceives* shared = nullptr;  // where receives come from, if not from the QP's own queue
  };
  // Whether its receives name good memory and hold every message of those terms.
  static bool MayShare(const SharedReceives& shared) { return !shared.terms().naughty; }
  // What the network may do.
  struct Weather {
    bool perfect = false;   // loses nothing and keeps the order
    bool in_order = false;  // keeps the order
    uint32_t copies = 1;    // of one packet
  };

  Unreliable(const std::array<Place, 2>& places, uint32_t first_qpn, const Terms& terms,
             const Weather& weather, Random& random, Verdict& verdict, TimeNs now);
  ~Unreliable();
  Unreliable(const Unreliable&) = delete;
  Unreliable& operator=(const Unreliable&) = delete;

  // Something random: posts, or a QP that recovers from a failed send.
  void Act(TimeNs now);
  // All sends are done.
  bool IsDone();
  // Everything flushes; then memory must be as the model says.
  void Close(TimeNs now);
  uint64_t completions() const { return completions_; }
  uint64_t received() const { return received_; }

 private:
  struct Message : SendRecord {
    bool done = false;  // the network has taken it whole
    uint32_t arrivals = 0;
  };
  struct Side {
    Side(Unreliable& pair, size_t number, const Place& at, const Terms& terms, Random& random)
        : all(pair),
          index(number),
          place(at),
          arena(terms.max_message_bytes, terms.recv_depth + 4, random) {}
    struct Sink : device::CompletionSink {
      Sink(Side& owner, bool is_send) : side(owner), sends(is_send) {}
      void OnCompletion(const device::Wc& wc) noexcept override {
        sends ? side.all.OnSent(side, wc) : side.all.OnReceived(side, wc);
      }
      Side& side;
      const bool sends;
    };
    Side& peer() const { return *all.sides_[1 - index]; }

    Unreliable& all;
    const size_t index;
    const Place place;
    Arena arena;
    soft::SoftPd pd;
    Sink send_sink{*this, true};
    Sink recv_sink{*this, false};
    soft::SoftCq send_cq{65536, &send_sink};
    soft::SoftCq recv_cq{65536, &recv_sink};
    std::unique_ptr<soft::SoftMr> local_mr;
    std::unique_ptr<soft::SoftMr> target_mr;
    std::unique_ptr<soft::SoftQp> qp;

    std::vector<Message> sends;
    std::vector<RecvRecord> receives;
    size_t settled_sends = 0;
    size_t settled_receives = 0;
    size_t last_arrived = 0;  // one more than the number of the peer's message
    uint64_t last_shared = SharedReceives::kNone;
    bool send_failed = false;
  };

  void Make(Side& side, uint32_t qpn, TimeNs now);
  void Connect(Side& side, uint32_t rq_psn, uint32_t sq_psn, TimeNs now);
  void Move(Side& side, device::QpState state, TimeNs now);
  void PostSend(Side& side, TimeNs now);
  void PostReceive(Side& side, TimeNs now);
  void OnSent(Side& side, const device::Wc& wc);
  void OnReceived(Side& side, const device::Wc& wc);
  // The receive that completes now; null if it must not.
  const RecvRecord* ReceiveFor(Side& side, uint64_t wr_id);
  void SettleReceive(Side& side, uint64_t wr_id);
  static Arena& RecvArena(Side& side) {
    return side.place.shared != nullptr ? side.place.shared->arena() : side.arena;
  }
  bool Matches(Side& side, const Message& message, const RecvRecord& receive,
               const device::Wc& wc) const;
  void SettleSilent(Side& side);
  void CheckWrites(Side& side);
  template <class... Parts>
  void Blame(const Side& side, const Parts&... parts) {
    verdict_.Fail("uc ", side.index, ": ", parts...);
  }

  const Terms terms_;
  const Weather weather_;
  Random& random_;
  Verdict& verdict_;
  std::array<std::unique_ptr<Side>, 2> sides_;
  uint64_t completions_ = 0;
  uint64_t received_ = 0;
};

}  // namespace rdmad::sim
