// Every reason for which a connection is refused, between two daemons (case 3): those that only
// another implementation gives are written into the messages on the wire between the hosts, and
// messages are bent there so that ours has to give the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "rdmad/rdmad.h"
#include "tests/integration/cm_bend.h"
#include "tests/integration/cm_pair.h"
#include "tests/integration/testbed.h"
#include "tests/integration/wired.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

std::vector<uint8_t> Bytes(size_t count, uint8_t first) {
  std::vector<uint8_t> bytes(count);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

class CmRejectTest : public TwoHostsTest {
 protected:
  void OnTheWire(CmBend bend) { hosts().wire()->SetHook(BendingCm(std::move(bend))); }
  // The reason that the REJs of one direction bring from now on, of REQs or of REPs.
  void Rewrite(WireDirection direction, bool of_rep, uint16_t reason) {
    OnTheWire([=](WireDirection seen, CmOnTheWire& m) {
      auto* const rej = std::get_if<RejOnTheWire>(&m);
      if (seen == direction && rej != nullptr && rej->of_rep == of_rep) rej->reason = reason;
      return WireVerdict::kPass;
    });
  }
  // Listeners of host 1 on both families, taken in turns.
  void Listen() {
    ASSERT_OK_AND_ASSIGN(listeners_[0], ListenOn(client(1), TwoHosts::Ipv4(1)));
    ASSERT_OK_AND_ASSIGN(listeners_[1], ListenOn(client(1), TwoHosts::Ipv6(1)));
  }
  ListeningId& Listener(int number) { return listeners_[number % 2]; }
  // An id of host 0 with a QP, which asks.
  void Ask(ListeningId& listener, ActiveId* out, const ConnParam& param = {}) {
    ASSERT_OK_AND_ASSIGN(*out, Resolve(client(0), listener.address));
    ASSERT_OK(out->id->CreateQp(nullptr, {}));
    ASSERT_OK(out->id->Connect(param));
  }
  void Take(ListeningId& listener, std::unique_ptr<CmId>* out) {
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listener.channel, CmEventType::kConnectRequest));
    *out = request->TakeId();
  }
  static void Accept(CmId& id) {
    ASSERT_OK(id.CreateQp(nullptr, {}));
    ASSERT_OK(id.Accept());
  }
  static void ExpectRejected(EventChannel& channel, int reason, const std::vector<uint8_t>& data) {
    ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(channel, CmEventType::kRejected));
    EXPECT_EQ(rejected->status(), reason);
    EXPECT_EQ(rejected->param().private_data, data);
  }

 private:
  ListeningId listeners_[2];
};

// ---- Whatever a peer says, the application hears it, and the data with it

TEST_F(CmRejectTest, EveryReasonReachesTheAskingApplicationWithDataBothWays) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  for (uint16_t reason = 1; reason <= kRejReasons; ++reason) {
    SCOPED_TRACE(reason);
    if (reason == kRejStale) continue;  // asked again
    Rewrite(WireDirection::kBToA, false, reason);
    ListeningId& listener = Listener(reason);
    ConnParam param;
    param.private_data = Bytes(56, static_cast<uint8_t>(reason));
    ActiveId active;
    ASSERT_NO_FATAL_FAILURE(Ask(listener, &active, param));
    ASSERT_OK_AND_ASSIGN(auto request,
                         ExpectEvent(*listener.channel, CmEventType::kConnectRequest));
    EXPECT_EQ(request->param().private_data, param.private_data);
    const std::vector<uint8_t> data = Bytes(kRejDataBytes, static_cast<uint8_t>(reason + 1));
    ASSERT_OK(request->TakeId()->Reject(data));
    ASSERT_NO_FATAL_FAILURE(ExpectRejected(*active.channel, reason, data));
  }
}

TEST_F(CmRejectTest, EveryReasonReachesTheAcceptingApplicationWithItsData) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  // Who moves its QP by itself has the last word.
  ASSERT_OK_AND_ASSIGN(const WiredEnd end, MakeEnd(client(0), TwoHosts::Ipv4(0)));
  ConnParam param;
  param.qpn = end.qp.qpn();
  for (uint16_t reason = 1; reason <= kRejReasons; ++reason) {
    SCOPED_TRACE(reason);
    Rewrite(WireDirection::kAToB, true, reason);
    ListeningId& listener = Listener(reason);
    ASSERT_OK_AND_ASSIGN(ActiveId active, Resolve(client(0), listener.address));
    ASSERT_OK(active.id->Connect(param));
    std::unique_ptr<CmId> passive;
    ASSERT_NO_FATAL_FAILURE(Take(listener, &passive));
    ASSERT_NO_FATAL_FAILURE(Accept(*passive));
    ASSERT_OK(ExpectEvent(*active.channel, CmEventType::kConnectResponse));
    const std::vector<uint8_t> data = Bytes(kRejDataBytes, static_cast<uint8_t>(reason));
    ASSERT_OK(active.id->Reject(data));
    ASSERT_NO_FATAL_FAILURE(ExpectRejected(*listener.channel, reason, data));
  }
}

// ---- What a peer asks decides what it is told

TEST_F(CmRejectTest, ARequestThatCannotBeTakenIsRefusedWithTheReason) {
  const struct {
    const char* what;
    void (*bend)(ReqOnTheWire&);
    uint16_t reason;
  } rows[] = {
      {"reliable datagram", [](ReqOnTheWire& r) { r.transport = 2; }, kRejInvalidTransport},
      {"a service that is not rdma_cm's", [](ReqOnTheWire& r) { r.service_id = 0x1234; },
       kRejInvalidServiceId},
      {"a port where nobody listens", [](ReqOnTheWire& r) { r.service_id ^= 1; },
       kRejInvalidServiceId},
      {"another version of the annex", [](ReqOnTheWire& r) { r.annex_version |= 0x10; },
       kRejUnsupported},
      {"an address that is not ours", [](ReqOnTheWire& r) { r.to[15] ^= 4; }, kRejInvalidGid},
      {"an address that is not theirs", [](ReqOnTheWire& r) { r.from[15] ^= 4; }, kRejInvalidGid},
      {"longer packets than the link carries", [](ReqOnTheWire& r) { r.path_mtu = 5; },
       kRejInvalidMtu},
  };
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  for (const auto& row : rows) {
    for (int family = 0; family < 2; ++family) {
      SCOPED_TRACE(row.what);
      OnTheWire([&row](WireDirection, CmOnTheWire& m) {
        if (auto* const req = std::get_if<ReqOnTheWire>(&m)) row.bend(*req);
        return WireVerdict::kPass;
      });
      ActiveId active;
      ASSERT_NO_FATAL_FAILURE(Ask(Listener(family), &active));
      ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*active.channel, CmEventType::kRejected));
      EXPECT_EQ(rejected->status(), row.reason);
    }
  }
}

TEST_F(CmRejectTest, AnIdThatThePeerStillUsesIsRefusedAsADuplicate) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  std::mutex mutex;
  std::vector<uint32_t> ids;  // by which host 0 asks
  OnTheWire([&](WireDirection, CmOnTheWire& m) {
    const std::lock_guard lock(mutex);
    if (auto* const req = std::get_if<ReqOnTheWire>(&m)) {
      if (std::find(ids.begin(), ids.end(), req->comm_id) == ids.end()) {
        ids.push_back(req->comm_id);
      }
      req->comm_id = ids.front();
    } else if (auto* const rej = std::get_if<RejOnTheWire>(&m)) {
      rej->remote_comm_id = ids.back();
    }
    return WireVerdict::kPass;
  });
  ActiveId first, second;
  std::unique_ptr<CmId> passive;
  ASSERT_NO_FATAL_FAILURE(Ask(Listener(0), &first));
  ASSERT_NO_FATAL_FAILURE(Take(Listener(0), &passive));
  ASSERT_NO_FATAL_FAILURE(Accept(*passive));
  ASSERT_OK(ExpectEvent(*first.channel, CmEventType::kEstablished));
  ASSERT_OK(ExpectEvent(*Listener(0).channel, CmEventType::kEstablished));
  ASSERT_NO_FATAL_FAILURE(Ask(Listener(0), &second));
  ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*second.channel, CmEventType::kRejected));
  EXPECT_EQ(rejected->status(), kRejDuplicateCommId);
}

// It has gone, and the message that says so is lost.
TEST_F(CmRejectTest, AnAnswerToWhoHasGoneIsRefusedAsOfNoConnection) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  std::atomic<int> lost{0};
  OnTheWire([&](WireDirection direction, CmOnTheWire& m) {
    const auto* const rej = std::get_if<RejOnTheWire>(&m);
    if (direction == WireDirection::kBToA || rej == nullptr || rej->reason != kRejTimeout) {
      return WireVerdict::kPass;
    }
    ++lost;
    return WireVerdict::kDrop;
  });
  ActiveId active;
  std::unique_ptr<CmId> passive;
  ASSERT_NO_FATAL_FAILURE(Ask(Listener(0), &active));
  ASSERT_NO_FATAL_FAILURE(Take(Listener(0), &passive));
  ASSERT_OK(active.id->DestroyId());
  ASSERT_TRUE(Eventually(absl::Seconds(5), [&] { return lost > 0; }));
  ASSERT_NO_FATAL_FAILURE(Accept(*passive));
  ASSERT_OK_AND_ASSIGN(auto rejected, ExpectEvent(*Listener(0).channel, CmEventType::kRejected));
  EXPECT_EQ(rejected->status(), kRejInvalidCommId);
}

// ---- Stale (10): the peer is not done with an old connection of the QP

TEST_F(CmRejectTest, WhoIsRefusedAsStaleAsksAgainByAnotherIdAndConnects) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  for (int family = 0; family < 2; ++family) {
    SCOPED_TRACE(family);
    std::mutex mutex;
    std::set<uint32_t> ids;  // by which host 0 asks
    OnTheWire([&](WireDirection, CmOnTheWire& m) {
      const std::lock_guard lock(mutex);
      if (auto* const req = std::get_if<ReqOnTheWire>(&m)) {
        ids.insert(req->comm_id);
        // The first two are refused by the other host, for a reason that we give them.
        if (ids.size() <= 2) req->transport = 2;
      } else if (auto* const rej = std::get_if<RejOnTheWire>(&m)) {
        rej->reason = kRejStale;
      }
      return WireVerdict::kPass;
    });
    ActiveId active;
    std::unique_ptr<CmId> passive;
    ASSERT_NO_FATAL_FAILURE(Ask(Listener(family), &active));
    ASSERT_NO_FATAL_FAILURE(Take(Listener(family), &passive));
    ASSERT_NO_FATAL_FAILURE(Accept(*passive));
    EXPECT_OK(ExpectEvent(*active.channel, CmEventType::kEstablished));
    EXPECT_OK(ExpectEvent(*Listener(family).channel, CmEventType::kEstablished));
    const std::lock_guard lock(mutex);
    EXPECT_EQ(ids.size(), 3u);
  }
}

TEST_F(CmRejectTest, WhoIsAlwaysStaleIsToldSoInTheEndWithTheData) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  Rewrite(WireDirection::kBToA, false, kRejStale);
  ActiveId active;
  ASSERT_NO_FATAL_FAILURE(Ask(Listener(0), &active));
  // The listener sees each of them, and says no.
  const std::vector<uint8_t> data = Bytes(kRejDataBytes, 3);
  int asked = 0;
  bool rejected = false;
  const absl::Time deadline = absl::Now() + Slow(absl::Seconds(60));
  while (!rejected && absl::Now() < deadline) {
    auto request = Listener(0).channel->GetEvent(absl::Milliseconds(100));
    if (request.ok()) {
      ASSERT_EQ((*request)->type(), CmEventType::kConnectRequest);
      ++asked;
      ASSERT_OK((*request)->TakeId()->Reject(data));
      continue;
    }
    auto answer = active.channel->GetEvent(absl::Milliseconds(100));
    if (!answer.ok()) continue;
    ASSERT_EQ((*answer)->type(), CmEventType::kRejected);
    EXPECT_EQ((*answer)->status(), kRejStale);
    EXPECT_EQ((*answer)->param().private_data, data);
    rejected = true;
  }
  EXPECT_TRUE(rejected);
  EXPECT_GT(asked, 1);
}

// The peer's "ready to use" does not arrive, but another request by the same QP.
TEST_F(CmRejectTest, AnAnswerIsStaleWhenItsQpAsksAgain) {
  if (!Start({.wire = true})) return;
  ASSERT_NO_FATAL_FAILURE(Listen());
  OnTheWire([](WireDirection, CmOnTheWire& m) {
    return std::holds_alternative<RtuOnTheWire>(m) ? WireVerdict::kDrop : WireVerdict::kPass;
  });
  ASSERT_OK_AND_ASSIGN(const WiredEnd end, MakeEnd(client(0), TwoHosts::Ipv4(0)));
  ConnParam param;
  param.qpn = end.qp.qpn();
  ActiveId active[2];
  std::unique_ptr<CmId> passive[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(active[i], Resolve(client(0), Listener(0).address));
    ASSERT_OK(active[i].id->Connect(param));
    if (i == 1) {
      ASSERT_OK_AND_ASSIGN(auto stale, ExpectEvent(*Listener(0).channel, CmEventType::kRejected));
      EXPECT_EQ(stale->id(), passive[0].get());
      EXPECT_EQ(stale->status(), kRejStale);
    }
    ASSERT_NO_FATAL_FAILURE(Take(Listener(0), &passive[i]));
    ASSERT_NO_FATAL_FAILURE(Accept(*passive[i]));
    ASSERT_OK(ExpectEvent(*active[i].channel, CmEventType::kConnectResponse));
    ASSERT_OK(active[i].id->Establish());
  }
}

}  // namespace
}  // namespace rdmad::testing
