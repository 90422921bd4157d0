// A network for transports under a fake clock: delivers what they send, after a delay, and loses,
// repeats, reorders and damages it as a seeded generator says. Everything a test sees depends on
// the seed alone.
//
// Packets cross it as header fields and a copy of the payload, or, with `wire_format`, as the bytes
// of a real packet that are parsed again at the other end. The ICRC is the carrier's business and
// is left out, unless packets are to be damaged: then it is computed, and checked at the other end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/transport.h"
#include "daemon/wire/icrc.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

struct NetworkFaults {
  double loss = 0;  // each a probability per packet
  double duplicate = 0;
  double reorder = 0;  // delayed by up to `reorder_delay` more than the others
  double corrupt = 0;  // some bits flipped on the way; needs `wire_format`
  double mark = 0;     // "congestion experienced", if the sender allows it
  double block = 0;    // per Send(): takes a part of what it is offered, or nothing
  TimeNs delay = 10'000;
  TimeNs reorder_delay = 50'000;
  uint64_t seed = 1;
  bool wire_format = true;
};

class FakeNetwork {
 public:
  // A packet as it was sent, whatever became of it.
  struct Sent {
    TimeNs time;
    IpAddress from;
    wire::PacketFields fields;
    uint32_t payload_bytes;
    uint8_t ecn;
  };

  // What became of the packets.
  struct Tally {
    uint64_t sent = 0;
    uint64_t dropped = 0;  // by `drop_if`
    uint64_t lost = 0;
    uint64_t duplicated = 0;
    uint64_t reordered = 0;
    uint64_t corrupted = 0;
    uint64_t marked = 0;
    uint64_t blocked = 0;  // Send() calls
  };

  explicit FakeNetwork(const NetworkFaults& faults = {}) : faults_(faults), random_(faults.seed) {}
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // What transports get as their PacketTx.
  PacketTx* tx() { return &port_; }
  // Packets to `address` go to `transport`.
  void Attach(const IpAddress& address, Transport* transport) {
    routes_[address] = transport;
    if (std::find(transports_.begin(), transports_.end(), transport) == transports_.end()) {
      transports_.push_back(transport);
    }
  }

  // Packets to the multicast group `group` go to each of its routes, with the flow as a receiver
  // sees it: `flow.local` is the group.
  using GroupRoute = std::function<void(const Flow&, const wire::PacketView&, TimeNs)>;
  void AttachGroup(const IpAddress& group, GroupRoute route) {
    groups_.emplace(group, std::move(route));
  }

  TimeNs now() const { return now_; }
  NetworkFaults& faults() { return faults_; }
  const std::vector<Sent>& sent() const { return sent_; }
  size_t CountSent(const std::function<bool(const Sent&)>& matches) const {
    return static_cast<size_t>(std::count_if(sent_.begin(), sent_.end(), matches));
  }
  // Packets for which this returns true are lost. For losses that a test chooses.
  std::function<bool(const Sent&)> drop_if;
  // Send() takes at most so many packets per call.
  size_t take_at_most = SIZE_MAX;
  // Keeps a record of all packets; off for long runs.
  bool keep_record = true;

  // Delivers what is due, gives each transport a turn, and moves the clock to the next thing that
  // will happen. False, with the clock unmoved, if nothing ever will.
  bool Step() {
    bool busy = DeliverDue();
    TimeNs next = NextArrival();
    for (Transport* transport : transports_) {
      busy |= transport->DoWork(now_) > 0;
      next = std::min(next, transport->NextDeadline(now_));
    }
    next = std::min(next, NextArrival());
    if (next == device::kNever) return busy;
    // A turn takes a microsecond, whether or not something waits.
    now_ = std::max(next, now_ + 1'000);
    return true;
  }

  // Steps until `done`, or nothing is left to happen, or the fake clock has advanced by `limit`.
  // Returns done().
  bool RunUntil(const std::function<bool()>& done, TimeNs limit = 60'000'000'000) {
    const TimeNs end = now_ + limit;
    while (!done()) {
      if (now_ >= end || !Step()) return done();
    }
    return true;
  }
  // Until nothing is left to happen.
  void RunUntilQuiet(TimeNs limit = 60'000'000'000) {
    RunUntil([] { return false; }, limit);
  }
  // Lets `duration` pass, with whatever happens in it.
  void Pass(TimeNs duration) {
    const TimeNs end = now_ + duration;
    while (now_ < end) {
      for (Transport* transport : transports_) transport->DoWork(now_);
      TimeNs next = std::min(end, NextArrival());
      for (Transport* transport : transports_) next = std::min(next, transport->NextDeadline(now_));
      now_ = std::min(end, std::max(next, now_ + 1'000));
      DeliverDue();
    }
  }
  // Puts a packet on the wire as if `flow.local` had sent it.
  void Inject(const Flow& flow, const wire::PacketFields& fields,
              std::span<const uint8_t> payload = {}) {
    Schedule(flow, fields, {payload.begin(), payload.end()}, faults_.delay);
  }

 private:
  struct Event {
    TimeNs time;
    uint64_t order;
    Flow flow;  // as the sender sees it
    wire::PacketFields fields;
    std::vector<uint8_t> payload;
    bool operator<(const Event& other) const {  // for a heap whose top is the earliest
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  class Port : public PacketTx {
   public:
    explicit Port(FakeNetwork& network) : network_(network) {}
    size_t Send(const Flow& flow, std::span<const TxPacket> packets) noexcept override {
      size_t taken = std::min(packets.size(), network_.take_at_most);
      if (network_.Chance(network_.faults_.block)) {
        taken = static_cast<size_t>(network_.random_() % (taken + 1));
        ++network_.tally_.blocked;
      }
      for (const TxPacket& packet : packets.first(taken)) network_.OnSend(flow, packet);
      return taken;
    }

   private:
    FakeNetwork& network_;
  };

  bool Chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }

  void OnSend(Flow flow, const TxPacket& packet) {
    const Sent record{now_, flow.local, packet.fields, packet.payload_bytes, flow.ecn};
    if (keep_record) sent_.push_back(record);
    ++tally_.sent;
    if (drop_if && drop_if(record)) {
      ++tally_.dropped;
      return;
    }
    if (Chance(faults_.loss)) {
      ++tally_.lost;
      return;
    }
    if (flow.ecn == kEct0 && Chance(faults_.mark)) {
      ++tally_.marked;
      flow.ecn = kEcnCe;
    }
    std::vector<uint8_t> payload;
    payload.reserve(packet.payload_bytes);
    for (const iovec& slice : packet.payload) {
      const auto* bytes = static_cast<const uint8_t*>(slice.iov_base);
      payload.insert(payload.end(), bytes, bytes + slice.iov_len);
    }
    const int copies = Chance(faults_.duplicate) ? 2 : 1;
    if (copies == 2) ++tally_.duplicated;
    for (int i = 0; i < copies; ++i) {
      TimeNs delay = faults_.delay;
      if (Chance(faults_.reorder)) {
        delay += std::uniform_int_distribution<TimeNs>(0, faults_.reorder_delay)(random_);
        ++tally_.reordered;
      }
      Schedule(flow, packet.fields, payload, delay);
    }
  }

  void Schedule(const Flow& flow, const wire::PacketFields& fields, std::vector<uint8_t> payload,
                TimeNs delay) {
    events_.push_back({now_ + delay, order_++, flow, fields, std::move(payload)});
    std::push_heap(events_.begin(), events_.end());
  }

  TimeNs NextArrival() const { return events_.empty() ? device::kNever : events_.front().time; }

  bool DeliverDue() {
    bool any = false;
    while (NextArrival() <= now_) {
      std::pop_heap(events_.begin(), events_.end());
      const Event event = std::move(events_.back());
      events_.pop_back();
      Deliver(event);
      any = true;
    }
    return any;
  }

  void Deliver(const Event& event) {
    const auto route = routes_.find(event.flow.remote);
    const auto [group, behind] = groups_.equal_range(event.flow.remote);
    if (route == routes_.end() && group == behind) return;
    Flow flow = event.flow;
    std::swap(flow.local, flow.remote);
    wire::PacketView view;
    if (!faults_.wire_format) {
      static_cast<wire::PacketFields&>(view) = event.fields;
      view.payload = event.payload;
    } else if (!CrossTheWire(event, &view)) {
      return;
    }
    if (route != routes_.end()) route->second->OnPacket(flow, view, now_);
    for (auto member = group; member != behind; ++member) member->second(flow, view, now_);
  }

  // Builds the packet, damages it perhaps, and parses it; false if it does not arrive.
  bool CrossTheWire(const Event& event, wire::PacketView* view) {
    const bool with_icrc = faults_.corrupt > 0;
    const wire::IcrcFlow icrc(event.flow.local, event.flow.remote, wire::kRoceUdpPort,
                              wire::kRoceUdpPort);
    std::array<uint8_t, wire::kMaxHeaderBytes> header;
    std::array<uint8_t, wire::kMaxTrailerBytes> trailer;
    const size_t header_bytes = wire::BuildHeaders(event.fields, event.payload.size(), header);
    uint32_t crc = 0;
    if (with_icrc) {
      const size_t size = wire::UdpPayloadBytes(event.fields.opcode, event.payload.size());
      crc =
          wire::IcrcUpdate(icrc.Begin(size, std::span(header).first(header_bytes)), event.payload);
    }
    const size_t trailer_bytes = wire::BuildTrailer(event.payload.size(), crc, trailer);
    bytes_.assign(header.begin(), header.begin() + static_cast<long>(header_bytes));
    bytes_.insert(bytes_.end(), event.payload.begin(), event.payload.end());
    bytes_.insert(bytes_.end(), trailer.begin(),
                  trailer.begin() + static_cast<long>(trailer_bytes));
    const bool damaged = Chance(faults_.corrupt);
    if (damaged) Damage();
    const bool whole = wire::ParsePacket(bytes_, view) == wire::DropReason::kNone &&
                       (!with_icrc || icrc.Compute(view->icrc_input) == view->icrc);
    if (whole == damaged) ++malformed_;
    return whole;
  }

  // Up to four bits of `bytes_`; not in BTH byte 4, which routers may change and no ICRC covers.
  void Damage() {
    ++tally_.corrupted;
    const int flips = 1 + static_cast<int>(random_() % 4);
    const size_t first = random_() % bytes_.size();
    for (int i = 0; i < flips; ++i) {
      // Each in a byte of its own, so that no flip undoes another.
      size_t at = (first + static_cast<size_t>(i) * 5) % bytes_.size();
      if (at == 4) at = i == 0 ? 0 : first;
      if (at == first && i > 0) continue;
      bytes_[at] ^= static_cast<uint8_t>(1u << random_() % 8);
    }
  }

 public:
  // Packets that did not survive being written and parsed, or that survived being damaged: a bug.
  size_t malformed() const { return malformed_; }
  const Tally& tally() const { return tally_; }

 private:
  NetworkFaults faults_;
  std::mt19937_64 random_;
  Port port_{*this};
  std::map<IpAddress, Transport*> routes_;
  std::multimap<IpAddress, GroupRoute> groups_;
  std::vector<Transport*> transports_;
  std::vector<Event> events_;   // a heap
  std::vector<uint8_t> bytes_;  // of the packet being delivered
  Tally tally_;
  std::vector<Sent> sent_;
  uint64_t order_ = 0;
  TimeNs now_ = 1'000'000'000;
  size_t malformed_ = 0;
};

}  // namespace rdmad::soft
