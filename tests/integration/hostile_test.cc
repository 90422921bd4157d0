// Promise 1: a client can harm only itself, whatever it writes anywhere.
//
// While hostile clients do their worst, well-behaved applications exchange data over the same
// daemons, every byte of which is checked; afterwards the daemon holds what it held before.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/shm/event.h"
#include "tests/integration/hostile_client.h"
#include "tests/integration/testbed.h"
#include "tests/integration/traffic.h"
#include "tests/support/raw_client.h"
#include "tests/support/slow.h"
#include "tests/support/status_testing.h"

namespace rdmad::testing {
namespace {

constexpr absl::Duration kScribbleTime = absl::Seconds(8);
constexpr uint64_t kSeed = 4711;
constexpr char kLimits[] = "[session_limits]\nmax_pool_bytes = 268435456\n";
constexpr uint64_t kPoolBytes = 16 << 20;

class HostileTest : public LoopbackTest {
 protected:
  // Daemons, and two pairs of applications with traffic: between the daemons, and within daemon 0.
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(StartDaemon(i, {.log_level = "warn", .more_config = kLimits}));
      ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(i), "good"));
      clients_.push_back(client);
    }
    ASSERT_OK_AND_ASSIGN(Client neighbour, AttachTo(Daemon(0), "neighbour"));
    clients_.push_back(neighbour);
    for (const int to : {1, 2}) {
      ASSERT_OK_AND_ASSIGN(Connection connection,
                           ConnectApps(clients_[0], clients_[to], Ipv4(to % 2)));
      connections_.push_back(std::make_unique<Connection>(std::move(connection)));
      Connection& pair = *connections_.back();
      traffic_.push_back(
          std::make_unique<TrafficThread>(clients_[0], pair.active, TrafficOptions{.seed = 1}));
      traffic_.push_back(
          std::make_unique<TrafficThread>(clients_[to], pair.passive, TrafficOptions{.seed = 2}));
    }
    ASSERT_OK_AND_ASSIGN(RawClient observer, RawClient::Attach(Daemon(0).run_dir(), "observer"));
    observer_ = std::make_unique<RawClient>(std::move(observer));
    ASSERT_TRUE(Eventually(absl::Seconds(10), [&] {
      return std::all_of(traffic_.begin(), traffic_.end(),
                         [](const auto& one) { return one->counts().received > 10; });
    }));
    ASSERT_OK_AND_ASSIGN(baseline_, CountObjects(*observer_));
    ASSERT_OK_AND_ASSIGN(use_, Daemon(0).Use());
  }

  // The others notice nothing, and nothing is left of the hostile clients.
  void ExpectUnharmed() {
    std::vector<uint64_t> received;
    for (const auto& one : traffic_) received.push_back(one->counts().received);
    EXPECT_TRUE(Eventually(absl::Seconds(5), [&] {
      for (size_t i = 0; i < traffic_.size(); ++i) {
        if (traffic_[i]->counts().received < received[i] + 10) return false;
      }
      return true;
    })) << "traffic has stopped";
    EXPECT_TRUE(Eventually(absl::Seconds(2),
                           [&] { return CountObjects(*observer_).value_or("") == baseline_; }))
        << "before: " << baseline_ << "\nafter:  " << CountObjects(*observer_).value_or("none");
    ASSERT_OK_AND_ASSIGN(const ProcessUse use, Daemon(0).Use());
    EXPECT_TRUE(Eventually(
        absl::Seconds(5),
        [&] { return Daemon(0).Use().value_or(ProcessUse{}).descriptors == use_.descriptors; }))
        << use_.descriptors << " descriptors before, now " << use.descriptors;
    for (const auto& one : traffic_) EXPECT_OK(one->Stop());
  }

  RawClient Attach() {
    absl::StatusOr<RawClient> raw = RawClient::Attach(Daemon(0).run_dir(), "hostile");
    EXPECT_OK(raw);
    return std::move(raw).value();
  }

  std::vector<Client> clients_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<TrafficThread>> traffic_;
  std::unique_ptr<RawClient> observer_;
  std::string baseline_;
  ProcessUse use_;
};

TEST_F(HostileTest, ScribblingOverAllSharedMemoryHarmsNobodyElse) {
  const absl::Time end = absl::Now() + kScribbleTime;
  std::mt19937_64 random(kSeed);
  int sessions = 0;
  int recoveries = 0;
  uint64_t attacks = 0;
  while (absl::Now() < end && !HasFailure()) {
    ASSERT_OK_AND_ASSIGN(auto hostile, HostileClient::Create(Daemon(0).run_dir(), random()));
    ++sessions;
    const absl::Time session_end = absl::Now() + absl::Milliseconds(500);
    while (absl::Now() < session_end && !hostile->HungUp()) {
      for (int i = 0; i < 50; ++i, ++attacks) hostile->Scribble();
      absl::SleepFor(absl::Microseconds(100));  // the engine's turn
      if (attacks % 500 == 0) {
        ++recoveries;
        if (!hostile->Recover()) break;
      }
    }
  }
  std::cout << attacks << " attacks by " << sessions << " clients, " << recoveries
            << " recoveries; seed " << kSeed << "\n";
  ExpectUnharmed();
}

TEST_F(HostileTest, ACorruptQueueCostsItsQueuePairWhichIsToldSo) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<HostileClient> client,
                       HostileClient::Create(Daemon(0).run_dir(), kSeed));
  const uint64_t qp = client->BreakSendQueue();
  shm::AsyncEvent event{};
  const int fd = client->raw().async_channel();
  pollfd poll{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&poll, 1, 10'000), 1);
  ASSERT_EQ(::read(fd, &event, sizeof(event)), static_cast<ssize_t>(sizeof(event)));
  EXPECT_EQ(event.type, uint32_t{kAsyncQpFatal});
  EXPECT_EQ(event.handle, qp);
  EXPECT_FALSE(client->HungUp()) << "the rest of the session goes on";
  EXPECT_TRUE(client->Recover());
  client.reset();
  ExpectUnharmed();
}

TEST_F(HostileTest, GarbageOnTheAttachSocketEndsOnlyThatConnection) {
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 300; ++i) {
    ASSERT_OK_AND_ASSIGN(const UniqueFd fd, ConnectAttachSocket(Daemon(0).run_dir()));
    std::string junk(random() % 3000, '\0');
    for (char& byte : junk) byte = static_cast<char>(random());
    (void)!::send(fd.get(), junk.data(), junk.size(), MSG_NOSIGNAL);
  }
  ExpectUnharmed();
}

TEST_F(HostileTest, ConnectionsThatSayNothingDoNotKeepOthersOut) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 400; ++i) {
    absl::StatusOr<UniqueFd> fd = ConnectAttachSocket(Daemon(0).run_dir());
    if (!fd.ok()) break;  // a bound is as good as patience
    silent.push_back(std::move(fd).value());
  }
  EXPECT_GT(silent.size(), 10u);
  const absl::Time start = absl::Now();
  EXPECT_OK(AttachTo(Daemon(0)));
  EXPECT_LT(absl::Now() - start, Slow(absl::Seconds(6)));
  silent.clear();
  ExpectUnharmed();
}

TEST_F(HostileTest, MoreMessagesOnAnAttachedSocketEndTheSession) {
  RawClient raw = Attach();
  const std::string junk(100, 'x');
  (void)!::send(raw.socket(), junk.data(), junk.size(), MSG_NOSIGNAL);
  // Descriptors, too, are not asked for.
  RawClient other = Attach();
  const int null = ::dup(0);
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &null, sizeof(int));
  for (int i = 0; i < 100; ++i) (void)!::sendmsg(other.socket(), &message, MSG_NOSIGNAL);
  ::close(null);
  raw.Disconnect();
  other.Disconnect();
  ExpectUnharmed();
}

TEST_F(HostileTest, GarbageOnTheRpcSocketIsDropped) {
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 100; ++i) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = Daemon(0).run_dir() + "/rdmad.sock";
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    std::string junk = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (int j = 0; j < 500; ++j) junk.push_back(static_cast<char>(random()));
    (void)!::send(fd.get(), junk.data(), junk.size(), MSG_NOSIGNAL);
  }
  ExpectUnharmed();
}

TEST_F(HostileTest, RpcConnectionsThatDoNothingDoNotKeepOthersOut) {
  // Fewer than one user may have (RpcDoorOptions): beyond those, a user keeps itself out.
  constexpr int kConnections = 1500;
  std::vector<UniqueFd> idle;
  for (int i = 0; i < kConnections; ++i) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = Daemon(0).run_dir() + "/rdmad.sock";
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    idle.push_back(std::move(fd));
  }
  {
    ASSERT_OK_AND_ASSIGN(Client client, AttachTo(Daemon(0)));
    EXPECT_OK(Pool::Create(client, 4096));
  }
  idle.clear();
  ExpectUnharmed();
}

TEST_F(HostileTest, ATokenThatTheDaemonDidNotGiveIsRefused) {
  RawClient raw = Attach();
  std::string nearly = raw.token();
  nearly[31] = static_cast<char>(nearly[31] ^ 1);
  for (const std::string& token :
       {std::string(), std::string("x"), raw.token().substr(0, 31), raw.token() + "x", nearly,
        std::string(32, '\0'), std::string(4000, 'x')}) {
    v1::GetSessionReply reply;
    const absl::Status status =
        RawClient::CallAs(token, raw.session(), &v1::SessionService::Stub::GetSession, {}, &reply);
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << token.size() << " bytes: " << status;
  }
  // And not after its session's end.
  const std::string token = raw.token();
  raw.HangUp();
  EXPECT_TRUE(Eventually(absl::Seconds(1), [&] {
    v1::GetSessionReply reply;
    return absl::IsUnauthenticated(
        RawClient::CallAs(token, raw.session(), &v1::SessionService::Stub::GetSession, {}, &reply));
  }));
  raw.Disconnect();
  ExpectUnharmed();
}

TEST_F(HostileTest, HandlesOfOthersAndOfThePastAreNotFound) {
  ASSERT_OK_AND_ASSIGN(auto victim, HostileClient::Create(Daemon(0).run_dir(), 1));
  RawClient raw = Attach();
  v1::AllocPdReply own_pd;
  ASSERT_OK(raw.Call(raw.verbs(), &v1::VerbsService::Stub::AllocPd, {}, &own_pd));
  v1::DeallocPdRequest dealloc;
  dealloc.set_pd(own_pd.pd());
  v1::DeallocPdReply dealloc_reply;
  ASSERT_OK(raw.Call(raw.verbs(), &v1::VerbsService::Stub::DeallocPd, dealloc, &dealloc_reply));
  // Stale: a second time.
  EXPECT_TRUE(absl::IsNotFound(
      raw.Call(raw.verbs(), &v1::VerbsService::Stub::DeallocPd, dealloc, &dealloc_reply)));

  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    // All small numbers, those around what the victim has, and anything.
    const uint64_t handle = i < 500    ? static_cast<uint64_t>(i)
                            : i < 1000 ? own_pd.pd() + static_cast<uint64_t>(i) - 750
                                       : random();
    v1::DestroyQpRequest destroy_qp;
    destroy_qp.set_qp(handle);
    v1::DestroyQpReply destroy_qp_reply;
    EXPECT_FALSE(
        raw.Call(raw.verbs(), &v1::VerbsService::Stub::DestroyQp, destroy_qp, &destroy_qp_reply)
            .ok());
    v1::DestroyPoolRequest destroy_pool;
    destroy_pool.set_pool(handle);
    destroy_pool.set_force(true);
    v1::DestroyPoolReply destroy_pool_reply;
    EXPECT_FALSE(raw.Call(raw.memory(), &v1::MemoryService::Stub::DestroyPool, destroy_pool,
                          &destroy_pool_reply)
                     .ok());
    if (i % 10 != 0) continue;
    v1::DestroyIdRequest destroy_id;
    destroy_id.set_id(handle);
    v1::DestroyIdReply destroy_id_reply;
    EXPECT_FALSE(
        raw.Call(raw.cm(), &v1::CmService::Stub::DestroyId, destroy_id, &destroy_id_reply).ok());
  }
  EXPECT_TRUE(victim->Recover());
  victim.reset();
  raw.Disconnect();
  ExpectUnharmed();
}

TEST_F(HostileTest, HugeNumbersAreRefusedAndTheLimitIsNamed) {
  RawClient raw = Attach();
  const uint64_t huge64 = std::numeric_limits<uint64_t>::max();
  const uint32_t huge32 = std::numeric_limits<uint32_t>::max();
  const auto expect_refused = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) << status;
    EXPECT_FALSE(status.message().empty());
  };
  for (const uint64_t size : {huge64, huge64 - 4095, uint64_t{1} << 63, uint64_t{1} << 50,
                              uint64_t{1} << 42, uint64_t{0}}) {
    v1::CreatePoolRequest request;
    request.set_size_bytes(size);
    v1::CreatePoolReply reply;
    SCOPED_TRACE(size);
    expect_refused(raw.Call(raw.memory(), &v1::MemoryService::Stub::CreatePool, request, &reply));
  }
  v1::CreatePoolRequest long_name;
  long_name.set_size_bytes(4096);
  long_name.set_name(std::string(65, 'n'));
  v1::CreatePoolReply pool;
  expect_refused(raw.Call(raw.memory(), &v1::MemoryService::Stub::CreatePool, long_name, &pool));
  long_name.set_name("fits");
  ASSERT_OK(raw.Call(raw.memory(), &v1::MemoryService::Stub::CreatePool, long_name, &pool));

  v1::AllocPdReply pd;
  ASSERT_OK(raw.Call(raw.verbs(), &v1::VerbsService::Stub::AllocPd, {}, &pd));
  // Ranges that leave the pool, or wrap.
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 0}, {0, 4097}, {4096, 1}, {4095, 2}, {huge64, 1}, {1, huge64}, {huge64, huge64}}) {
    v1::RegisterRegionRequest request;
    request.set_pd(pd.pd());
    request.set_pool(pool.pool());
    request.set_offset_bytes(offset);
    request.set_length_bytes(length);
    request.set_iova(0x1000);
    request.set_access(1);
    v1::RegisterRegionReply reply;
    SCOPED_TRACE(std::to_string(offset) + " " + std::to_string(length));
    expect_refused(
        raw.Call(raw.memory(), &v1::MemoryService::Stub::RegisterRegion, request, &reply));
  }
  // An address that wraps.
  v1::RegisterRegionRequest wrapping;
  wrapping.set_pd(pd.pd());
  wrapping.set_pool(pool.pool());
  wrapping.set_length_bytes(4096);
  wrapping.set_iova(huge64 - 100);
  wrapping.set_access(1);
  v1::RegisterRegionReply region;
  expect_refused(
      raw.Call(raw.memory(), &v1::MemoryService::Stub::RegisterRegion, wrapping, &region));

  for (const uint32_t depth : {0u, huge32, 1u << 31, (1u << 20) + 1}) {
    v1::CreateCqRequest request;
    request.set_depth(depth);
    v1::CreateCqReply reply;
    SCOPED_TRACE(depth);
    expect_refused(raw.Call(raw.verbs(), &v1::VerbsService::Stub::CreateCq, request, &reply));
  }
  v1::CreateCqRequest create_cq;
  create_cq.set_depth(16);
  v1::CreateCqReply cq;
  ASSERT_OK(raw.Call(raw.verbs(), &v1::VerbsService::Stub::CreateCq, create_cq, &cq));
  for (int field = 0; field < 5; ++field) {
    for (const uint32_t value : {huge32, 1u << 31, 32769u}) {
      v1::CreateQpRequest request;
      request.set_pd(pd.pd());
      request.set_qp_type(2);
      request.set_send_cq(cq.cq());
      request.set_recv_cq(cq.cq());
      v1::QpCap& cap = *request.mutable_cap();
      cap.set_max_send_wr(field == 0 ? value : 1);
      cap.set_max_recv_wr(field == 1 ? value : 1);
      cap.set_max_send_sge(field == 2 ? value : 1);
      cap.set_max_recv_sge(field == 3 ? value : 1);
      cap.set_max_inline_bytes(field == 4 ? value : 0);
      v1::CreateQpReply reply;
      SCOPED_TRACE(std::to_string(field) + " " + std::to_string(value));
      expect_refused(raw.Call(raw.verbs(), &v1::VerbsService::Stub::CreateQp, request, &reply));
    }
  }
  raw.Disconnect();
  ExpectUnharmed();
}

TEST_F(HostileTest, ASessionThatTakesAllItMayHaveIsStoppedByItsQuota) {
  RawClient raw = Attach();
  absl::Status status;
  uint64_t taken = 0;
  while (taken < (uint64_t{1} << 30)) {
    v1::CreatePoolRequest request;
    request.set_size_bytes(kPoolBytes);
    v1::CreatePoolReply reply;
    status = raw.Call(raw.memory(), &v1::MemoryService::Stub::CreatePool, request, &reply);
    if (!status.ok()) break;
    taken += reply.size_bytes();
    ASSERT_OK(raw.TakeDescriptor(reply.descriptor_tag()));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(std::string(status.message()).find("max_pool_bytes"), std::string::npos) << status;
  EXPECT_EQ(taken, uint64_t{256} << 20);
  // Others get what they need.
  EXPECT_OK(Pool::Create(clients_[0], 1 << 20));
  raw.Disconnect();
  ExpectUnharmed();
}

}  // namespace
}  // namespace rdmad::testing
