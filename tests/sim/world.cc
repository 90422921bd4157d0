#include "tests/sim/world.h"

#include <algorithm>
#include <cstring>

#include "daemon/device/soft/ack_timing.h"
#include "daemon/device/soft/qp_table.h"
#include "daemon/device/soft/transport_core.h"
#include "daemon/device/soft/transport_counters.h"
#include "daemon/wire/aeth.h"

namespace rdmad::sim {

using device::MtuBytes;

namespace {

constexpr TimeNs kMillisecond = 1'000'000;
constexpr TimeNs kSecond = 1'000'000'000;

// In virtual time, after the network has healed: eight timeouts, and RNR waits of whole queues.
constexpr TimeNs kPatience = 120 * kSecond;

// How long nothing may be done then between two peers that live: the timeout, and the waits of
// receivers that are not ready. (rc_liveness_test has closer bounds.)
TimeNs PatienceOf(const Terms& terms) {
  return soft::AckTimeout(terms.timeout, 7) + 8 * wire::RnrTimer(terms.min_rnr_timer).count() +
         50 * kMillisecond;
}

}  // namespace

World::~World() {
  datagrams_.reset();
  unreliable_.reset();
  connections_.clear();
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
  for (auto& end : connection.ends) end->Close(now());
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
  if (unreliable_ != nullptr && random_.Chance(0.3)) {
    unreliable_->Act(now());
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
  if (shared_ != nullptr && random_.Chance(0.03)) shared_->Arm();
  if (random_.Chance(0.05)) ChangeWeather();
  LetTimePass();
  for (auto& e : connection.ends) e->CheckTurns();
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
    if (end->draining() && end->drained()) {
      end->EndDrain(now());
      connection.settled_at = now();  // what has not begun begins now
    }
    for (uint32_t i = end->MissingReceives(); i > 0 && end->is_alive() && end->PostReceive(now());
         --i) {
    }
    done &= !end->HasOpenSends();
  }
  return done;
}

// Something is done again and again, as long as anything is to be done.
void World::CheckProgress(Connection& connection, TimeNs healed_at) {
  if (!connection.first().is_alive() || !connection.last().is_alive()) return;  // retries run out
  const uint64_t settled = connection.first().settled() + connection.last().settled();
  if (settled != std::exchange(connection.settled, settled)) connection.settled_at = now();
  const TimeNs since = std::max(connection.settled_at, healed_at);
  if (now() - since <= PatienceOf(connection.terms)) return;
  verdict_.Fail("nothing is done for ", static_cast<double>(now() - since) / 1e9,
                " s: ", connection.first().Describe(), "; ", connection.last().Describe());
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
  const TimeNs healed_at = now();
  const TimeNs end = now() + kPatience;
  uint64_t steps = 0;
  int idle = 0;  // what a step does by itself may be all, until we end a drain
  const auto done = [&] {
    bool all = true;
    for (auto& connection : connections_) {
      if (connection->connect_at != device::kNever) continue;
      if (IsDone(*connection)) continue;
      all = false;
      CheckProgress(*connection, healed_at);
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
  if (unreliable_ != nullptr && !unreliable_->IsDone()) verdict_.Fail("uc sends are not done");
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
  // One for each mark at most, and nothing without one.
  if (const uint64_t told = Counter("cnp_sent"); told > 2 * tally.marked) {
    verdict_.Fail(told, " CNPs for ", tally.marked, " marks");
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
      result.grants += end->whole_grants();
    }
  }
  if (datagrams_ != nullptr) {
    if (!verdict_.failed()) datagrams_->Close(now());
    result.completions += datagrams_->completions();
    result.successes += datagrams_->received();
    datagrams_.reset();
  }
  if (unreliable_ != nullptr) {
    if (!verdict_.failed()) unreliable_->Close(now());
    result.completions += unreliable_->completions();
    result.successes += unreliable_->received();
    unreliable_.reset();
  }
  if (shared_ != nullptr && !verdict_.failed()) shared_->Close();
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

}  // namespace rdmad::sim
