#include "tests/sim/world.h"

#include <algorithm>
#include <cstring>

#include "daemon/device/soft/qp_table.h"
#include "daemon/device/soft/transport_core.h"
#include "daemon/device/soft/transport_counters.h"

namespace rdmad::sim {

using device::MtuBytes;
using device::QpState;

namespace {

constexpr TimeNs kMicrosecond = 1'000;
constexpr TimeNs kMillisecond = 1'000'000;
constexpr TimeNs kSecond = 1'000'000'000;

// In virtual time, after the network has healed: eight timeouts, and RNR waits of whole queues.
constexpr TimeNs kPatience = 120 * kSecond;

}  // namespace

World::World(const SimOptions& options)
    : options_(options), random_(options.seed), verdict_(options.trace) {
  MakeWeather();
  MakeHosts();
  const int count = 1 + static_cast<int>(random_.Below(3));
  for (int i = 0; i < count; ++i) MakeConnection(i);
  if (random_.Chance(0.3)) MakeDatagrams();
}

World::~World() {
  datagrams_.reset();
  connections_.clear();
}

void World::MakeWeather() {
  weather_.seed = random_.Next();
  weather_.delay = random_.Pick({1, 10, 10, 100, 2'000}) * kMicrosecond;
  weather_.reorder_delay = random_.Pick({5, 50, 500}) * kMicrosecond;
  const bool foul = random_.Chance(0.3);
  const auto some = [&] {
    if (random_.Chance(0.5)) return 0.0;
    return foul ? random_.Pick({0.05, 0.1, 0.25}) : random_.Pick({0.001, 0.01, 0.01});
  };
  if (random_.Chance(0.85)) {
    weather_.loss = some();
    weather_.duplicate = some();
    weather_.reorder = some();
    weather_.corrupt = some();
    partitions_ = random_.Chance(0.2);
  }
  if (random_.Chance(0.3)) weather_.block = random_.Pick({0.01, 0.2, 0.7});
  const bool slow = weather_.delay >= kMillisecond;
  excuses_.loses_some =
      weather_.loss + weather_.corrupt + weather_.reorder > 0 || slow || partitions_;
  excuses_.loses_much =
      weather_.loss + weather_.corrupt > 0.02 || weather_.reorder > 0.05 || slow || partitions_;
  network_ = std::make_unique<soft::FakeNetwork>(weather_);
  network_->keep_record = false;
  network_->drop_if = [this](const soft::FakeNetwork::Sent& packet) {
    verdict_.Trace(packet.time, "   packet to qpn ", packet.fields.dest_qpn.value(), " opcode ",
                   static_cast<int>(packet.fields.opcode), " psn ", packet.fields.psn.value(),
                   " syndrome ", static_cast<int>(packet.fields.aeth.syndrome), " bytes ",
                   packet.payload_bytes);
    return partitioned_;
  };
}

void World::MakeHosts() {
  config_.initial_window_bytes = random_.Pick({1024u, 8192u, 65536u, 262144u});
  config_.max_window_bytes = random_.Pick({8192u, 65536u, 2097152u});
  config_.qp_budget_bytes = random_.Pick({1u, 1024u, 16384u, 65536u});
  config_.turn_budget_bytes = random_.Pick({1024u, 65536u, 262144u});
  const bool v6 = random_.Chance(0.2);
  for (uint8_t i = 0; i < 2; ++i) {
    auto host = std::make_unique<Host>();
    host->address = IpAddress::FromV4(10, 0, 0, static_cast<uint8_t>(i + 1));
    if (v6) {
      host->address = IpAddress::FromV6(
          {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<uint8_t>(i + 1)});
    }
    host->transport = std::make_unique<soft::Transport>(network_->tx(), host.get(), config_);
    host->transport->AddLocalAddress(host->address);
    network_->Attach(host->address, host->transport.get());
    hosts_.push_back(std::move(host));
  }
}

Terms World::RandomTerms() {
  Terms terms;
  terms.mtu = random_.Pick({device::Mtu::k256, device::Mtu::k256, device::Mtu::k512,
                            device::Mtu::k1024, device::Mtu::k4096});
  const uint32_t mtu = MtuBytes(terms.mtu);
  terms.max_message_bytes = mtu * random_.Pick({1u, 2u, 3u, 5u, mtu <= 512 ? 40u : 7u}) + 3;
  terms.send_depth = random_.Pick({1u, 2u, 3u, 8u, 16u});
  terms.recv_depth = random_.Pick({1u, 2u, 5u, 16u});
  terms.max_sge = random_.Pick({1u, 2u, 6u});
  terms.timeout = static_cast<uint8_t>(random_.Pick({1, 8, 12, 14}));
  terms.retry_count = static_cast<uint8_t>(random_.Chance(0.7) ? 7 : random_.Below(7));
  terms.rnr_retry = static_cast<uint8_t>(random_.Chance(0.8) ? 7 : random_.Below(7));
  terms.min_rnr_timer = static_cast<uint8_t>(random_.Pick({1, 5, 12, 18}));
  terms.dest_rd_atomic = static_cast<uint8_t>(random_.Pick({1, 2, 4, 16}));
  terms.rd_atomic = static_cast<uint8_t>(random_.Between(1, terms.dest_rd_atomic));
  terms.access = kFullAccess;
  terms.naughty = random_.Chance(0.3);
  if (terms.naughty && random_.Chance(0.3)) terms.access &= static_cast<uint32_t>(random_.Next());
  terms.signal_all = random_.Chance(0.2);
  terms.receive_chance = random_.Pick({0.2, 0.5, 1.0});
  return terms;
}

void World::MakeConnection(int number) {
  auto connection = std::make_unique<Connection>();
  connection->terms = RandomTerms();
  connection->chaotic = random_.Chance(0.3);
  const uint32_t kind = random_.Below(10);  // mostly across the network
  Host& from = *hosts_[0];
  Host& to = kind < 6 ? *hosts_[1] : from;
  const auto add = [&](const char* side, Host& host) {
    connection->ends.push_back(std::make_unique<End>(std::to_string(number) + side, *host.transport,
                                                     host.address, connection->terms, excuses_,
                                                     random_, verdict_));
  };
  add("a", from);
  if (kind < 9) add("b", to);
  connection->first().SetPeer(connection->last());
  connection->last().SetPeer(connection->first());
  Connect(*connection);
  connections_.push_back(std::move(connection));
}

void World::MakeDatagrams() {
  std::vector<Datagrams::Place> places;
  for (uint32_t i = random_.Between(2, 4); i > 0; --i) {
    Host& host = *hosts_[random_.Below(2)];
    places.push_back({host.transport.get(), host.address});
  }
  const uint32_t copies = weather_.duplicate > 0 ? 2 : 1;
  datagrams_ = std::make_unique<Datagrams>(places, next_qpn_, copies, random_.Chance(0.5), random_,
                                           verdict_, now());
  next_qpn_ += static_cast<uint32_t>(places.size());
}

void World::Connect(Connection& connection) {
  ++connects_;
  connection.connect_at = connection.doomed_at = device::kNever;
  for (auto& end : connection.ends) end->StartEpoch();
  for (auto& end : connection.ends) end->Create(next_qpn_++, now());
  const auto psn = [&] {
    return random_.Chance(0.5) ? static_cast<uint32_t>(0xfffff0 + random_.Below(16))
                               : random_.Below(1u << 24);
  };
  const uint32_t psn_a = psn();
  connection.late_psn = connection.ends.size() == 1 ? psn_a : psn();
  verdict_.Trace(now(), " connect ", connection.first().name(), " qpn ", connection.first().qpn(),
                 " to ", connection.last().qpn());
  connection.first().ToRtr(connection.late_psn, now());
  if (connection.ends.size() == 2) connection.last().ToRtr(psn_a, now());
  connection.first().ToRts(psn_a, now());
  connection.late_rts = connection.ends.size() == 2;
  if (random_.Chance(0.8)) FinishConnect(connection);
}

// The passive side goes to RTS, perhaps long after the active one has begun to send.
void World::FinishConnect(Connection& connection) {
  if (!std::exchange(connection.late_rts, false)) return;
  if (connection.last().is_alive()) connection.last().ToRts(connection.late_psn, now());
}

void World::Disturb(Connection& connection) {
  End& end = random_.Chance(0.5) ? connection.first() : connection.last();
  disturbed_ = true;
  const uint32_t kind = random_.Below(6);
  verdict_.Trace(now(), " disturb ", end.name(), " kind ", kind, " at home ", hosts_[0]->at_home);
  switch (kind) {
    case 0:
      end.Fail(now());
      break;
    case 1:
      end.Reset(now());
      break;
    case 2:
      end.Destroy(now());
      break;
    case 3:
      end.Withdraw(random_.Chance(0.7), now());
      break;
    default: {
      // An address goes or comes: QPs of one host find each other by the network, or directly.
      Host& host = *hosts_[0];
      host.at_home = !host.at_home;
      if (host.at_home) {
        host.transport->AddLocalAddress(host.address);
      } else {
        host.transport->RemoveLocalAddress(host.address);
      }
      break;
    }
  }
}

// Ends the epoch: everything is flushed or forgotten, and the books are closed.
void World::Close(Connection& connection) {
  verdict_.Trace(now(), " close ", connection.first().name());
  for (auto& end : connection.ends) {
    if (random_.Chance(0.8)) end->Fail(now());
    if (random_.Chance(0.5)) {
      end->Reset(now());
    } else {
      end->Destroy(now());
    }
  }
  for (auto& end : connection.ends) end->Close();
  for (auto& end : connection.ends) end->CompareMemory();
  // Long enough for the last packet to get lost: QP numbers come again at once.
  connection.connect_at =
      now() + weather_.delay + weather_.reorder_delay + random_.Below(kMillisecond);
  connection.late_rts = false;
}

void World::LookAfter(Connection& connection) {
  if (connection.connect_at != device::kNever) {
    if (now() > connection.connect_at) Connect(connection);
    return;
  }
  const bool failed = std::any_of(connection.ends.begin(), connection.ends.end(),
                                  [](const auto& end) { return !end->is_alive(); });
  if (!failed) return;
  if (connection.doomed_at == device::kNever) {
    connection.doomed_at = now() + random_.Below(random_.Pick({1000u, 1'000'000u, 100'000'000u}));
  } else if (now() >= connection.doomed_at) {
    Close(connection);
  }
}

void World::Act() {
  if (datagrams_ != nullptr && random_.Chance(0.4)) {
    datagrams_->Act(now());
    return LetTimePass();
  }
  Connection& connection = *connections_[random_.Below(connections_.size())];
  LookAfter(connection);
  if (connection.connect_at != device::kNever) return LetTimePass();
  if (connection.late_rts && random_.Chance(0.3)) FinishConnect(connection);
  End& end = random_.Chance(0.5) ? connection.first() : connection.last();
  if (end.draining() && random_.Chance(0.3)) end.EndDrain(now());
  if (connection.chaotic && random_.Chance(0.05)) {
    Disturb(connection);
  } else if (random_.Chance(0.03)) {
    end.StartDrain(now());
  } else if (random_.Chance(0.5)) {
    for (uint32_t i = random_.Below(6); i > 0 && end.PostSend(now()); --i) {
    }
  } else if (random_.Chance(connection.terms.receive_chance)) {
    for (uint32_t i = random_.Below(6); i > 0 && end.PostReceive(now()); --i) {
    }
  }
  if (random_.Chance(0.05)) ChangeWeather();
  LetTimePass();
}

void World::ChangeWeather() {
  if (partitions_ && random_.Chance(0.3)) {
    partitioned_ = !partitioned_;
    verdict_.Trace(now(), " partition ", partitioned_);
    return;
  }
  const bool fair = random_.Chance(0.3);
  network_->faults() = weather_;
  if (fair) network_->faults() = {.delay = weather_.delay};
}

void World::LetTimePass() {
  switch (random_.Below(4)) {
    case 0:
      break;
    case 1:
      network_->Step();
      break;
    case 2:
      for (uint32_t i = random_.Below(30); i > 0; --i) network_->Step();
      break;
    case 3:
      network_->Pass(random_.Below(random_.Pick({1'000u, 100'000u, 5'000'000u})));
      break;
  }
}

bool World::IsDone(Connection& connection) {
  bool done = true;
  for (auto& end : connection.ends) {
    end->SettleSilent();
    if (end->draining() && end->drained()) end->EndDrain(now());
    for (uint32_t i = end->MissingReceives(); i > 0 && end->is_alive() && end->PostReceive(now());
         --i) {
    }
    done &= !end->HasOpenSends();
  }
  return done;
}

// The network heals and every message finds its receive: now everything must come to an end by
// itself.
void World::Drain() {
  partitioned_ = false;
  network_->faults() = {.delay = weather_.delay};
  for (auto& connection : connections_) {
    if (connection->connect_at != device::kNever) continue;
    FinishConnect(*connection);
  }
  const TimeNs end = now() + kPatience;
  uint64_t steps = 0;
  int idle = 0;  // what a step does by itself may be all, until we end a drain
  const auto done = [&] {
    bool all = true;
    for (auto& connection : connections_) {
      if (connection->connect_at == device::kNever) all &= IsDone(*connection);
    }
    return all;
  };
  while (!verdict_.failed() && !done()) {
    if (now() < end && ++steps < 2'000'000) {
      idle = network_->Step() ? 0 : idle + 1;
      if (idle < 3) continue;
    }
    for (auto& connection : connections_) {
      if (connection->connect_at != device::kNever || IsDone(*connection)) continue;
      verdict_.Fail("hangs after ", steps, " steps and ",
                    static_cast<double>(now() + kPatience - end) / 1e9,
                    " s: ", connection->first().Describe(), "; ", connection->last().Describe());
    }
  }
  network_->RunUntilQuiet(kSecond);
  if (datagrams_ != nullptr && !datagrams_->IsDone()) verdict_.Fail("datagrams are not sent");
  for (auto& connection : connections_) {
    if (connection->connect_at == device::kNever && !verdict_.failed()) {
      for (auto& e : connection->ends) {
        if (e->draining() && e->is_alive() && !e->drained()) {
          verdict_.Fail(e->name(), ": never drained");
        }
        e->EndDrain(now());
      }
    }
  }
}

uint64_t World::Counter(const char* name) const {
  uint64_t total = 0;
  for (const auto& host : hosts_) {
    for (const auto& counter : host->transport->counters().Snapshot()) {
      if (std::strcmp(counter.name, name) == 0) total += counter.value;
    }
  }
  return total;
}

// What is sent again is at most a window for each thing that went wrong; nothing, if nothing did.
void World::CheckRetransmissions() {
  const soft::FakeNetwork::Tally& tally = network_->tally();
  const uint64_t wrongs = tally.lost + tally.dropped + tally.corrupted + tally.reordered +
                          tally.duplicated + Counter("rx_rnr_nak") + Counter("local_rnr_waits") +
                          Counter("timeouts") + Counter("tail_probes");
  uint64_t window = 0;
  for (const auto& connection : connections_) {
    const Terms& terms = connection->terms;
    const uint32_t packets = terms.max_message_bytes / MtuBytes(terms.mtu) + 1;
    window = std::max<uint64_t>(window, uint64_t{packets} * terms.send_depth);
  }
  const uint64_t again = Counter("retransmitted_packets");
  if (again > wrongs * window) {
    verdict_.Fail("sent ", again, " packets again for ", wrongs, " things that went wrong");
  }
  if (network_->malformed() != 0) {
    verdict_.Fail(network_->malformed(), " packets malformed, or damaged and not noticed");
  }
}

void World::CheckBaseline() {
  for (const auto& host : hosts_) {
    soft::TransportCore& core = host->transport->core();
    if (core.timers.size() != 0) verdict_.Fail(core.timers.size(), " timers are left");
    if (!core.active.empty()) verdict_.Fail(core.active.size(), " active QPs are left");
    if (core.qps.size() != 0) verdict_.Fail(core.qps.size(), " QPs are left");
  }
}

SimResult World::Run() {
  SimResult result;
  const TimeNs start = now();
  const uint32_t planned = random_.Between(20, 160);
  result.operations = options_.operations == 0 ? planned : std::min(planned, options_.operations);
  for (uint32_t i = 0; i < result.operations && !verdict_.failed(); ++i) Act();
  if (!verdict_.failed()) Drain();
  if (!verdict_.failed()) CheckRetransmissions();
  for (auto& connection : connections_) {
    if (!verdict_.failed() && connection->connect_at == device::kNever) Close(*connection);
  }
  for (auto& connection : connections_) {
    for (auto& end : connection->ends) {
      end->Destroy(now());
      result.completions += end->completions();
      result.successes += end->successes();
    }
  }
  if (datagrams_ != nullptr) {
    if (!verdict_.failed()) datagrams_->Close(now());
    result.completions += datagrams_->completions();
    result.successes += datagrams_->received();
    datagrams_.reset();
  }
  if (!verdict_.failed()) CheckBaseline();
  result.packets = network_->tally().sent;
  verdict_.Mix(result.packets);
  verdict_.Mix(static_cast<uint64_t>(now()));
  result.connections = connects_;
  result.fingerprint = verdict_.fingerprint();
  result.failure = verdict_.failure();
  result.virtual_seconds = static_cast<double>(now() - start) / 1e9;
  return result;
}

SimResult RunSim(const SimOptions& options) {
  return World(options).Run();
}

std::string ReproductionOf(const SimOptions& options) {
  std::string command = "bazel run //tests/sim:sim -- --seed=" + std::to_string(options.seed);
  if (options.operations != 0) command += " --operations=" + std::to_string(options.operations);
  return command;
}

SimResult RunAndShrink(const SimOptions& options) {
  SimResult result = RunSim(options);
  if (result.failure.empty()) return result;
  // Operations are the same up to where they end, so fewer of them are the same story, cut short.
  SimOptions shorter = options;
  uint32_t good = 0;
  uint32_t bad = result.operations;
  while (bad - good > 1) {
    shorter.operations = good + (bad - good) / 2;
    SimResult attempt = RunSim(shorter);
    if (attempt.failure.empty()) {
      good = shorter.operations;
    } else {
      bad = shorter.operations;
      result = std::move(attempt);
    }
  }
  shorter.operations = bad;
  result.failure += "\n  " + ReproductionOf(shorter) + " --trace";
  return result;
}

}  // namespace rdmad::sim
