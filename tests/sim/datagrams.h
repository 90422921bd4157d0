// UD QPs in the simulation: each may send to each, itself included.
//
// Datagrams may get lost, and come twice when the network doubles them; nothing else is allowed. A
// send completes once, in its order; a receive completes once, in its order, with one whole
// datagram that somebody sent to this QP with the right QKey, behind 40 bytes that name the sender.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/soft/soft_ah.h"
#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/transport.h"
#include "daemon/device/soft/ud_qp.h"
#include "tests/sim/arena.h"
#include "tests/sim/random.h"
#include "tests/sim/verdict.h"

namespace rdmad::sim {

using device::TimeNs;

class Datagrams {
 public:
  struct Place {
    soft::Transport* transport;
    IpAddress address;
  };

  // One QP a place, numbered from `first_qpn` on. `copies`: how often one datagram may come at
  // most.
  Datagrams(const std::vector<Place>& places, uint32_t first_qpn, uint32_t copies, bool naughty,
            Random& random, Verdict& verdict, TimeNs now);
  ~Datagrams();

  // Something random: posts, or a QP that fails and starts again.
  void Act(TimeNs now);
  // All sends are done.
  bool IsDone();
  // Everything flushes; then memory must be as the model says.
  void Close(TimeNs now);
  uint64_t completions() const { return completions_; }
  uint64_t received() const { return received_; }

 private:
  struct Message {
    size_t from;
    size_t to;
    bool good_qkey;
    bool has_imm;
    bool solicited;
    uint32_t imm_be;
    uint32_t arrivals = 0;
    std::vector<std::byte> content;
  };
  struct Send {
    size_t message;
    bool signaled;
    bool bad;  // asks for trouble
  };
  struct Receive {
    std::vector<Piece> pieces;
    uint32_t cell;
  };

  struct Member {
    Member(Datagrams& all, size_t number, Random& random)
        : group(all), index(number), arena(kMaxBytes + 40, kDepth + 4, random) {}
    struct Sink : device::CompletionSink {
      Sink(Member& owner, bool is_send) : member(owner), sends(is_send) {}
      void OnCompletion(const device::Wc& wc) noexcept override {
        member.group.OnCompletion(member, wc, sends);
      }
      Member& member;
      const bool sends;
    };

    Datagrams& group;
    const size_t index;
    Place place;
    Arena arena;
    soft::SoftPd pd;
    Sink send_sink{*this, true};
    Sink recv_sink{*this, false};
    soft::SoftCq send_cq{65536, &send_sink};
    soft::SoftCq recv_cq{65536, &recv_sink};
    std::unique_ptr<soft::SoftMr> mr;
    std::unique_ptr<soft::UdQp> qp;
    std::vector<std::unique_ptr<soft::SoftAh>> handles;  // to each member

    // Since the QP left RESET.
    std::vector<Send> sends;
    std::vector<Receive> receives;
    size_t settled_sends = 0;
    size_t settled_receives = 0;
    bool send_failed = false;
  };

  void Start(Member& member, TimeNs now);
  void Recover(Member& member, TimeNs now);
  void Stop(Member& member, TimeNs now);
  void SettleSilent(Member& member);
  void PostSend(Member& member, TimeNs now);
  void PostReceive(Member& member, TimeNs now);
  void OnCompletion(Member& member, const device::Wc& wc, bool is_send);
  void OnSent(Member& member, const device::Wc& wc);
  void OnReceived(Member& member, const device::Wc& wc);
  template <class... Parts>
  void Blame(const Member& member, const Parts&... parts) {
    verdict_.Fail("ud ", member.index, ": ", parts...);
  }

  static constexpr uint32_t kMaxBytes = 1024;
  static constexpr uint32_t kDepth = 8;
  static constexpr uint32_t kMaxSge = 4;
  static constexpr uint32_t kQkey = 0x1234;
  static constexpr uint64_t kIova = 0x7000'0000'0000;

  const uint32_t copies_;
  const bool naughty_;
  Random& random_;
  Verdict& verdict_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Message> messages_;
  uint64_t completions_ = 0;
  uint64_t received_ = 0;
};

}  // namespace rdmad::sim
