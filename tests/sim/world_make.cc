// What a world is made of.
#include <algorithm>

#include "tests/sim/world.h"

namespace rdmad::sim {

using device::MtuBytes;

namespace {

constexpr TimeNs kMicrosecond = 1'000;
constexpr TimeNs kMillisecond = 1'000'000;

}  // namespace

World::World(const SimOptions& options)
    : options_(options), random_(options.seed), verdict_(options.trace) {
  MakeWeather();
  MakeHosts();
  if (random_.Chance(0.3)) MakeSharedReceives();
  const int count = 1 + static_cast<int>(random_.Below(shared_ == nullptr ? 3 : 5));
  for (int i = 0; i < count; ++i) MakeConnection(i);
  if (random_.Chance(0.3)) MakeDatagrams();
  if (random_.Chance(0.3)) MakeUnreliable();
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
  if (random_.Chance(0.3)) weather_.mark = random_.Pick({0.01, 0.2, 1.0});
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
    CheckMarkable(packet);
    return partitioned_;
  };
}

// Only what slows down when it is marked may be marked.
void World::CheckMarkable(const soft::FakeNetwork::Sent& packet) {
  const bool slows_down = wire::InfoOf(packet.fields.opcode).transport == wire::Transport::kRc;
  const bool markable = packet.ecn != soft::kNotEct;
  if (markable != (slows_down && config_.ecn)) {
    verdict_.Fail("opcode ", static_cast<int>(packet.fields.opcode), " has ECN bits ",
                  static_cast<int>(packet.ecn));
  }
}

void World::MakeHosts() {
  config_.ecn = random_.Chance(0.9);
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
  terms.timeout = static_cast<uint8_t>(random_.Pick({1, 8, 12, 14, 20}));
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
  if (random_.Chance(0.6)) terms.windows = random_.Between(1, 4);
  return terms;
}

void World::MakeSharedReceives() {
  Host& host = *hosts_[random_.Below(2)];
  shared_ =
      std::make_unique<SharedReceives>(*host.transport, &host, RandomTerms(), random_, verdict_);
}

// Whether QPs of the host may draw on the shared queue.
bool World::SharesWith(const Host& host) const {
  return shared_ != nullptr && host.transport.get() == &shared_->transport();
}

void World::MakeConnection(int number) {
  auto connection = std::make_unique<Connection>();
  const bool shares = shared_ != nullptr && random_.Chance(0.7);
  connection->terms = shares ? shared_->terms() : RandomTerms();
  connection->chaotic = random_.Chance(0.3);
  const uint32_t kind = random_.Below(10);  // mostly across the network
  Host& from = *hosts_[0];
  Host& to = kind < 6 ? *hosts_[1] : from;
  const auto add = [&](const char* side, Host& host) {
    const bool draws = shares && SharesWith(host);
    connection->ends.push_back(std::make_unique<End>(
        std::to_string(number) + side, *host.transport, host.address, connection->terms,
        draws ? shared_.get() : nullptr, excuses_, random_, verdict_));
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
    const bool shares = SharesWith(host) && Datagrams::MayShare(*shared_) && random_.Chance(0.7);
    places.push_back({host.transport.get(), host.address, shares ? shared_.get() : nullptr});
  }
  const uint32_t copies = weather_.duplicate > 0 ? 2 : 1;
  datagrams_ = std::make_unique<Datagrams>(places, *network_, next_qpn_, copies,
                                           random_.Chance(0.5), random_, verdict_);
  next_qpn_ += static_cast<uint32_t>(places.size());
}

void World::MakeUnreliable() {
  Host& from = *hosts_[0];
  Host& to = *hosts_[random_.Chance(0.8) ? 1 : 0];
  // A disturbance may take a pair of one host from the local path to the network and back.
  const bool one_way = &from != &to || std::none_of(connections_.begin(), connections_.end(),
                                                    [](const auto& c) { return c->chaotic; });
  Unreliable::Weather weather;
  weather.copies = weather_.duplicate > 0 ? 2 : 1;
  weather.in_order = one_way && weather_.reorder == 0;
  weather.perfect = weather.in_order && weather_.duplicate == 0 && weather_.loss == 0 &&
                    weather_.corrupt == 0 && !partitions_;
  const bool shares = shared_ != nullptr && Unreliable::MayShare(*shared_) && random_.Chance(0.7);
  const auto place = [&](const Host& host) {
    return Unreliable::Place{host.transport.get(), host.address,
                             shares && SharesWith(host) ? shared_.get() : nullptr};
  };
  unreliable_ = std::make_unique<Unreliable>(std::array{place(from), place(to)}, next_qpn_,
                                             shares ? shared_->terms() : RandomTerms(), weather,
                                             random_, verdict_, now());
  next_qpn_ += 2;
}

}  // namespace rdmad::sim
