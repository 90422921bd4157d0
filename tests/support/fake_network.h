// A network for transports under a fake clock: delivers what they send, after a delay, and loses,
// repeats and reorders it as a seeded generator says. Everything a test sees depends on the seed
// alone.
//
// Packets cross it as header fields and a copy of the payload, or, with `wire_format`, as the bytes
// of a real packet that are parsed again at the other end. The ICRC is the carrier's business and
// is left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "daemon/base/ip_address.h"
#include "daemon/device/soft/packet_io.h"
#include "daemon/device/soft/transport.h"
#include "daemon/wire/packet.h"

namespace rdmad::soft {

struct NetworkFaults {
  double loss = 0;  // each a probability per packet
  double duplicate = 0;
  double reorder = 0;  // delayed by up to `reorder_delay` more than the others
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
    bool busy = false;
    while (!events_.empty() && events_.top().time <= now_) {
      const Event event = events_.top();
      events_.pop();
      Deliver(event);
      busy = true;
    }
    TimeNs next = events_.empty() ? device::kNever : events_.top().time;
    for (Transport* transport : transports_) {
      busy |= transport->DoWork(now_) > 0;
      next = std::min(next, transport->NextDeadline(now_));
    }
    if (!events_.empty()) next = std::min(next, events_.top().time);
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
      TimeNs next = end;
      if (!events_.empty()) next = std::min(next, events_.top().time);
      for (Transport* transport : transports_) next = std::min(next, transport->NextDeadline(now_));
      now_ = std::min(end, std::max(next, now_ + 1'000));
      while (!events_.empty() && events_.top().time <= now_) {
        const Event event = events_.top();
        events_.pop();
        Deliver(event);
      }
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
    bool operator<(const Event& other) const {  // for a queue whose top is the earliest
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  class Port : public PacketTx {
   public:
    explicit Port(FakeNetwork& network) : network_(network) {}
    size_t Send(const Flow& flow, std::span<const TxPacket> packets) noexcept override {
      const size_t taken = std::min(packets.size(), network_.take_at_most);
      for (const TxPacket& packet : packets.first(taken)) network_.OnSend(flow, packet);
      return taken;
    }

   private:
    FakeNetwork& network_;
  };

  bool Chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }

  void OnSend(const Flow& flow, const TxPacket& packet) {
    const Sent record{now_, flow.local, packet.fields, packet.payload_bytes};
    if (keep_record) sent_.push_back(record);
    if (drop_if && drop_if(record)) return;
    if (Chance(faults_.loss)) return;
    std::vector<uint8_t> payload;
    payload.reserve(packet.payload_bytes);
    for (const iovec& slice : packet.payload) {
      const auto* bytes = static_cast<const uint8_t*>(slice.iov_base);
      payload.insert(payload.end(), bytes, bytes + slice.iov_len);
    }
    const int copies = Chance(faults_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      TimeNs delay = faults_.delay;
      if (Chance(faults_.reorder)) {
        delay += std::uniform_int_distribution<TimeNs>(0, faults_.reorder_delay)(random_);
      }
      Schedule(flow, packet.fields, payload, delay);
    }
  }

  void Schedule(const Flow& flow, const wire::PacketFields& fields, std::vector<uint8_t> payload,
                TimeNs delay) {
    events_.push({now_ + delay, order_++, flow, fields, std::move(payload)});
  }

  void Deliver(const Event& event) {
    const auto route = routes_.find(event.flow.remote);
    if (route == routes_.end()) return;
    Flow flow = event.flow;
    std::swap(flow.local, flow.remote);
    wire::PacketView view;
    std::vector<uint8_t> bytes;
    if (faults_.wire_format) {
      std::array<uint8_t, wire::kMaxHeaderBytes> header;
      std::array<uint8_t, wire::kMaxTrailerBytes> trailer;
      const size_t header_bytes = wire::BuildHeaders(event.fields, event.payload.size(), header);
      const size_t trailer_bytes = wire::BuildTrailer(event.payload.size(), 0, trailer);
      bytes.insert(bytes.end(), header.begin(), header.begin() + static_cast<long>(header_bytes));
      bytes.insert(bytes.end(), event.payload.begin(), event.payload.end());
      bytes.insert(bytes.end(), trailer.begin(),
                   trailer.begin() + static_cast<long>(trailer_bytes));
      if (wire::ParsePacket(bytes, &view) != wire::DropReason::kNone) {
        ++malformed_;
        return;
      }
    } else {
      static_cast<wire::PacketFields&>(view) = event.fields;
      view.payload = event.payload;
    }
    route->second->OnPacket(flow, view, now_);
  }

 public:
  // Packets that did not survive being written and parsed: a bug of the sender.
  size_t malformed() const { return malformed_; }

 private:
  NetworkFaults faults_;
  std::mt19937_64 random_;
  Port port_{*this};
  std::map<IpAddress, Transport*> routes_;
  std::vector<Transport*> transports_;
  std::priority_queue<Event> events_;
  std::vector<Sent> sent_;
  uint64_t order_ = 0;
  TimeNs now_ = 1'000'000'000;
  size_t malformed_ = 0;
};

}  // namespace rdmad::soft
