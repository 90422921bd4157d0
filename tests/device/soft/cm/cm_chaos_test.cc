// Thousands of connections over bad networks, each with a script that its seed wrote: whatever gets
// lost, doubled or reordered, and even if a device goes, both sides come to rest, each heard of
// exactly one end, and nothing stays behind.
//
// For longer runs: CM_CHAOS_SEEDS=100000 in the environment of the test binary.
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>

#include "gtest/gtest.h"
#include "tests/device/soft/cm/cm_testing.h"

namespace rdmad::soft {
namespace {

uint64_t Seeds(uint64_t usual) {
  const char* const wanted = std::getenv("CM_CHAOS_SEEDS");
  return wanted == nullptr ? usual : std::strtoull(wanted, nullptr, 10);
}

bool IsTerminal(CmEventType type) {
  return type == CmEventType::kRejected || type == CmEventType::kUnreachable ||
         type == CmEventType::kConnectError || type == CmEventType::kDisconnected;
}

int Terminals(const TestId& id) {
  int count = 0;
  for (const SeenEvent& event : id.events) count += IsTerminal(event.type) ? 1 : 0;
  return count;
}

// What a side does when, after how long.
enum class Act { kNothing, kDisconnect, kDestroy };
enum class Answer { kAccept, kReject, kDestroy };

struct Script {
  Faults faults;
  Answer answer;
  int64_t answer_after_ns;
  Act client_act, server_act;
  int64_t client_after_ns, server_after_ns;  // from the beginning
  bool data_flows;                           // the accepting QP sees data at some time
  bool device_goes;                          // that of the client, at client_after_ns
};

Script WriteScript(TestNet* net) {
  const auto any_of = [net](auto... choices) {
    const std::vector<std::common_type_t<decltype(choices)...>> all{choices...};
    return all[net->Random() % all.size()];
  };
  Script script;
  script.faults.loss = any_of(0.0, 0.01, 0.1, 0.3);
  script.faults.duplicate = any_of(0.0, 0.1, 0.5);
  script.faults.delay_max_ns = any_of(50'000, 1'000'000, 300'000'000);
  script.answer =
      any_of(Answer::kAccept, Answer::kAccept, Answer::kAccept, Answer::kReject, Answer::kDestroy);
  script.answer_after_ns = any_of(int64_t{0}, 50 * kMs, 5 * kSecond);
  script.client_act = any_of(Act::kNothing, Act::kDisconnect, Act::kDestroy);
  script.server_act = any_of(Act::kNothing, Act::kDisconnect, Act::kDestroy);
  script.client_after_ns =
      static_cast<int64_t>(net->Random() % static_cast<uint64_t>(10 * kSecond));
  script.server_after_ns =
      static_cast<int64_t>(net->Random() % static_cast<uint64_t>(10 * kSecond));
  script.data_flows = any_of(true, false);
  script.device_goes = net->Random() % 8 == 0;
  return script;
}

// As when an interface is deleted: its addresses go, and then the device.
void LoseDevice(TestHost* host) {
  host->device.addresses.clear();
  host->manager->OnAddressChanged(host->ip);
  host->manager->OnDeviceRemoved(&host->device);
}

void Do(Act act, TestId* id) {
  if (id->endpoint == nullptr) return;
  if (act == Act::kDisconnect) (void)(*id)->Disconnect();
  if (act == Act::kDestroy) id->endpoint.reset();
}

class Play {
 public:
  explicit Play(uint64_t seed) : net_(seed), script_(WriteScript(&net_)) {
    net_.keep_sent = false;
    net_.faults = script_.faults;
  }

  void Run() {
    ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId&) {});
    ConnectTo(&client_, Address("10.0.0.2:7000"), Param(0x11));
    const TimeNs begin = net_.now;
    bool answered = false, client_done = false, server_done = false;
    // Steps of 10 ms are fine enough for a script in which everything happens at random times.
    while (net_.now - begin < 20 * kSecond) {
      net_.RunFor(10 * kMs);
      const int64_t elapsed = net_.now - begin;
      if (request() != nullptr) {
        if (!answered && elapsed >= script_.answer_after_ns) {
          answered = true;
          AnswerRequest();
        }
        if (answered && script_.data_flows && request()->endpoint != nullptr &&
            client_.Saw(CmEventType::kConnectResponse)) {
          (void)(*request())->NotifyCommEstablished();
        }
        if (!server_done && elapsed >= script_.server_after_ns) {
          server_done = true;
          Do(script_.server_act, request());
        }
      }
      if (!client_done && elapsed >= script_.client_after_ns) {
        client_done = true;
        if (script_.device_goes) LoseDevice(&a_);
        Do(script_.client_act, &client_);
      }
    }
    ASSERT_TRUE(net_.Run()) << "does not come to rest";
    if (!script_.device_goes) CheckAgreement();
    // Whoever still has a connection ends it now, politely.
    if (client_.endpoint != nullptr) (void)client_->Disconnect();
    for (const auto& request : server_.requests) Do(Act::kDisconnect, request.get());
    ASSERT_TRUE(net_.Run()) << "does not come to rest after the end";
    CheckEnd();
  }

 private:
  TestId* request() { return server_.requests.empty() ? nullptr : server_.requests.front().get(); }

  void AnswerRequest() {
    if (request()->endpoint == nullptr) return;
    if (script_.answer == Answer::kAccept) AcceptIt(*request());
    if (script_.answer == Answer::kReject) (void)(*request())->Reject({});
    if (script_.answer == Answer::kDestroy) request()->endpoint.reset();
  }

  static bool Stands(TestId* id) {
    return id != nullptr && id->endpoint != nullptr &&
           std::string((*id)->state_name()) == "established";
  }

  // All of its DREQs were lost, so that the other side cannot know.
  static bool LeftUnheard(TestId* id) {
    const SeenEvent* const end = id == nullptr ? nullptr : id->Find(CmEventType::kDisconnected);
    return end != nullptr && end->status == -ETIMEDOUT;
  }

  // If one side has a connection, the other has it too.
  void CheckAgreement() {
    if (LeftUnheard(&client_) || LeftUnheard(request())) return;
    EXPECT_EQ(Stands(&client_), Stands(request())) << Story();
  }

  void CheckEnd() {
    EXPECT_LE(server_.requests.size(), 1u) << Story();
    EXPECT_LE(Terminals(client_), 1) << Story();
    if (client_.endpoint != nullptr && !script_.device_goes) {
      EXPECT_EQ(Terminals(client_), 1) << Story();
    }
    if (client_.endpoint != nullptr && script_.device_goes) {
      EXPECT_EQ(client_.Count(CmEventType::kDeviceRemoval), 1) << Story();
    }
    for (const auto& id : server_.requests) {
      // Who rejects hears nothing more.
      const bool rejected = script_.answer == Answer::kReject && Terminals(*id) == 0;
      if (id->endpoint != nullptr && !rejected) {
        EXPECT_EQ(Terminals(*id), 1) << Story();
      }
      EXPECT_LE(Terminals(*id), 1) << Story();
      EXPECT_LE(id->Count(CmEventType::kEstablished), 1) << Story();
    }
    EXPECT_EQ(a_.manager->connection_count(), 0u) << Story();
    EXPECT_EQ(b_.manager->connection_count(), 0u) << Story();
    EXPECT_EQ(b_.manager->pending_requests(), 0u) << Story();
  }

  std::string Story() {
    return "client: " + client_.History() +
           "\nserver: " + (request() == nullptr ? "(no request)" : request()->History());
  }

  TestNet net_;
  const Script script_;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_};
  TestId client_{&a_};
};

// The UDP port space: a question, an answer, groups joined and left all the while, and on some
// days a device that goes.
class DatagramPlay {
 public:
  explicit DatagramPlay(uint64_t seed) : net_(seed), script_(WriteScript(&net_)) {
    net_.keep_sent = false;
    net_.faults = script_.faults;
  }

  void Run() {
    ListenOn(&server_, Address("0.0.0.0:7000"), [](TestId&) {});
    ASSERT_TRUE(member_->BindAddr(Address("10.0.0.1:0")).ok());
    ConnectTo(&client_, Address("10.0.0.2:7000"), Param(0x11));
    const TimeNs begin = net_.now;
    bool answered = false;
    while (net_.now - begin < 20 * kSecond) {
      net_.RunFor(static_cast<int64_t>(net_.Random() % static_cast<uint64_t>(60 * kMs)));
      const int64_t elapsed = net_.now - begin;
      JoinOrLeave();
      if (!answered && !server_.requests.empty() && elapsed >= script_.answer_after_ns) {
        answered = true;
        AnswerRequest(server_.requests.front().get());
      }
      if (script_.client_act == Act::kDestroy && elapsed >= script_.client_after_ns) {
        client_.endpoint.reset();
      }
      if (script_.device_goes && !device_lost_ && elapsed >= script_.server_after_ns) {
        device_lost_ = true;
        LoseDevice(&a_);
        cookies_ = {};
      }
    }
    ASSERT_TRUE(net_.Run()) << "does not come to rest";
    CheckEnd();
  }

 private:
  void AnswerRequest(TestId* request) {
    switch (script_.answer) {
      case Answer::kAccept:
        accepted_ = (*request)->Accept(Param(0x22)).ok();
        break;
      case Answer::kReject:
        (void)(*request)->Reject({});
        break;
      case Answer::kDestroy:
        request->endpoint.reset();
        break;
    }
  }

  void JoinOrLeave() {
    const uint64_t which = net_.Random() % 3;
    const SocketAddress group{IpAddress::FromV4(239, 0, 0, static_cast<uint8_t>(which)), 0};
    const bool is_in = cookies_[which] != 0;
    if (net_.Random() % 2 == 0) {
      const absl::Status joined = member_->JoinMulticast(group, 0, ++last_cookie_);
      EXPECT_EQ(joined.ok(), !is_in && !device_lost_) << joined.ToString();
      if (joined.ok()) cookies_[which] = last_cookie_;
    } else {
      EXPECT_EQ(member_->LeaveMulticast(group).ok(), is_in);
      cookies_[which] = 0;
    }
  }

  void CheckEnd() {
    const int ends =
        client_.Count(CmEventType::kEstablished) + client_.Count(CmEventType::kUnreachable);
    EXPECT_LE(ends, 1) << Story();
    if (client_.endpoint != nullptr && !device_lost_) {
      EXPECT_EQ(ends, 1) << Story();
    }
    if (client_.Saw(CmEventType::kEstablished)) {
      EXPECT_TRUE(accepted_) << Story();
    }
    if (device_lost_) {
      EXPECT_EQ(member_.Count(CmEventType::kDeviceRemoval), 1) << member_.History();
    }
    // Each join was heard of at most once, those that still stand exactly once.
    std::map<uint64_t, int> heard;
    for (const SeenEvent& event : member_.events) {
      if (event.type == CmEventType::kMulticastJoin) ++heard[event.multicast_cookie];
    }
    for (const auto& [cookie, count] : heard) EXPECT_EQ(count, 1) << "cookie " << cookie;
    for (const uint64_t cookie : cookies_) {
      if (cookie != 0) {
        EXPECT_EQ(heard.count(cookie), 1u) << "cookie " << cookie;
      }
    }
    for (TestHost* host : {&a_, &b_}) {
      EXPECT_EQ(host->manager->sidr_count(), 0u) << Story();
      EXPECT_EQ(host->manager->pending_requests(), 0u) << Story();
    }
  }

  std::string Story() {
    return "client: " + client_.History() + "\nserver: " +
           (server_.requests.empty() ? "(no request)" : server_.requests.front()->History());
  }

  TestNet net_;
  const Script script_;
  bool device_lost_ = false;
  bool accepted_ = false;
  std::array<uint64_t, 3> cookies_{};  // of the group's standing membership; 0: none
  uint64_t last_cookie_ = 0;
  TestHost a_{&net_, "10.0.0.1"};
  TestHost b_{&net_, "10.0.0.2"};
  TestId server_{&b_, device::PortSpace::kUdp};
  TestId client_{&a_, device::PortSpace::kUdp};
  TestId member_{&a_, device::PortSpace::kUdp};
};

TEST(CmChaos, EveryScriptEndsOnceOnBothSides) {
  for (uint64_t seed = 1; seed <= Seeds(4000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Play(seed).Run();
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(CmChaos, EveryQuestionHasOneAnswerAndEveryJoinOneEvent) {
  for (uint64_t seed = 1; seed <= Seeds(1000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    DatagramPlay(seed).Run();
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace rdmad::soft
