// UD QPs in the simulation: each may send to each, itself included, and to multicast groups that
// some of them are in, and join and leave.
//
// Datagrams may get lost, and come twice when the network doubles them; nothing else is allowed. A
// send completes once, in its order; a receive completes once, in its order, with one whole
// datagram that somebody sent to this QP with the right QKey, behind 40 bytes that name the sender.
// Some of them draw their receives from a queue that connections share.
// What comes to a group comes once to each QP that is in it then, the sender's own included: it
// completes a receive there, or is counted as dropped.
//
// Files: datagrams.cc makes, posts and ends; datagrams_check.cc judges; datagrams_groups.cc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device/soft/multicast_group.h"
#include "daemon/device/soft/soft_ah.h"
#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/transport.h"
#include "daemon/device/soft/ud_qp.h"
#include "daemon/wire/grh.h"
#include "tests/sim/arena.h"
#include "tests/sim/random.h"
#include "tests/sim/shared_receives.h"
#include "tests/sim/verdict.h"
#include "tests/support/fake_network.h"

namespace rdmad::sim {

using device::TimeNs;

class Datagrams {
 public:
  struct Place {
    soft::Transport* transport;
    IpAddress address;
    SharedReceives* shared = nullptr;  // where receives come from, if not from the QP's own queue
  };
  // Whether receives of that queue take every datagram and name good memory.
  static bool MayShare(const SharedReceives& shared) {
    return !shared.terms().naughty && shared.terms().max_message_bytes >= kReceiveBytes;
  }

  // One QP a place, numbered from `first_qpn` on. `copies`: how often one datagram may come at
  // most. `network`, which carries the groups, is not used after the datagrams are gone.
  Datagrams(const std::vector<Place>& places, soft::FakeNetwork& network, uint32_t first_qpn,
            uint32_t copies, bool naughty, Random& random, Verdict& verdict);
  ~Datagrams();

  // Something random: posts, or a QP that fails and starts again.
  void Act(TimeNs now);
  // All sends are done.
  bool IsDone();
  // Everything flushes; then memory must be as the model says.
  void Close(TimeNs now);
  uint64_t completions() const { return completions_; }
  uint64_t received() const { return received_; }
  uint64_t multicasts() const { return multicasts_; }

 private:
  static constexpr size_t kGroups = 2;

  struct Message {
    size_t from;
    size_t to;  // a member, or behind them all a group
    bool good_qkey;
    bool has_imm;
    bool solicited;
    uint32_t imm_be;
    std::vector<uint32_t> arrivals;  // at each member
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
        : group(all), index(number), arena(kReceiveBytes, kDepth + 4, random) {}
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
    std::vector<std::unique_ptr<soft::SoftAh>> handles;  // to each member, and each group
    std::array<std::unique_ptr<soft::MulticastMember>, kGroups> memberships;
    size_t received = 0;  // successes and failures that are no flush
    uint64_t last_shared = SharedReceives::kNone;

    // Since the QP left RESET.
    std::vector<Send> sends;
    std::vector<Receive> receives;
    size_t settled_sends = 0;
    size_t settled_receives = 0;
    bool send_failed = false;
  };

  // A group, as the hosts know it.
  struct Group {
    IpAddress address;
    std::map<soft::Transport*, soft::MulticastGroup> hosts;
  };

  void Make(Member& member, const Place& place, uint32_t qpn, TimeNs now);
  void MakeGroups(const std::vector<Place>& places);
  void JoinOrLeave(Member& member);
  void LeaveAll(Member& member);
  void OnGroupPacket(size_t group, soft::Transport& transport, const soft::Flow& flow,
                     const wire::PacketView& packet, TimeNs now);
  uint64_t Outcomes(soft::Transport& transport) const;
  bool IsFor(const Message& message, const Member& member) const;
  // Whether the 40 bytes in front name the message's two ends.
  bool GrhFits(const Member& member, const Message& message,
               const std::vector<std::byte>& got) const;
  void Start(Member& member, TimeNs now);
  void Recover(Member& member, TimeNs now);
  void Stop(Member& member, TimeNs now);
  void SettleSilent(Member& member);
  void PostSend(Member& member, TimeNs now);
  void PostReceive(Member& member, TimeNs now);
  void OnCompletion(Member& member, const device::Wc& wc, bool is_send);
  void OnSent(Member& member, const device::Wc& wc);
  void OnReceived(Member& member, const device::Wc& wc);
  // The memory of the receive that completes now, which may be used again behind this; null if it
  // must not complete.
  const std::vector<Piece>* ReceiveFor(Member& member, uint64_t wr_id);
  static Arena& RecvArena(Member& member) {
    return member.place.shared != nullptr ? member.place.shared->arena() : member.arena;
  }
  template <class... Parts>
  void Blame(const Member& member, const Parts&... parts) {
    verdict_.Fail("ud ", member.index, ": ", parts...);
  }

  static constexpr uint32_t kMaxBytes = 1024;
  static constexpr uint32_t kReceiveBytes = kMaxBytes + wire::kGrhBytes;
  static constexpr uint32_t kDepth = 8;
  static constexpr uint32_t kMaxSge = 4;
  static constexpr uint32_t kQkey = 0x1234;
  static constexpr uint64_t kIova = 0x7000'0000'0000;

  soft::FakeNetwork& network_;
  const uint32_t copies_;
  const bool naughty_;
  Random& random_;
  Verdict& verdict_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Message> messages_;
  std::array<Group, kGroups> groups_;
  uint64_t completions_ = 0;
  uint64_t received_ = 0;
  uint64_t multicasts_ = 0;  // packets to a group at a host
};

}  // namespace rdmad::sim
