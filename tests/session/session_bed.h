// A session on a fake device and a real engine that the test turns by hand: nothing happens but in
// Settle().
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/ip_address.h"
#include "daemon/engine/engine.h"
#include "daemon/session/device_list.h"
#include "daemon/session/event_router.h"
#include "daemon/session/quota.h"
#include "daemon/session/session.h"
#include "daemon/session/session_host.h"
#include "proto/shm/event.h"
#include "tests/session/fake_cm.h"
#include "tests/support/fake_device.h"

namespace rdmad::session {

inline bool Mentions(const absl::Status& status, const std::string& words) {
  return std::string(status.message()).find(words) != std::string::npos;
}

class FakeHost final : public SessionHost {
 public:
  std::unique_ptr<FdWatch> WatchWritable(int, std::function<void()> ready) override {
    on_writable = std::move(ready);
    return std::make_unique<FdWatch>();
  }
  void RunSlowly(std::function<void()> work, std::function<void()> done) override {
    slow.push_back([work = std::move(work), done = std::move(done)] {
      work();
      done();
    });
  }
  void EndSession(Session&, const std::string& reason) override { end_reasons.push_back(reason); }

  std::function<void()> on_writable;
  std::vector<std::function<void()>> slow;
  std::vector<std::string> end_reasons;
};

class FakeSender final : public DescriptorSender {
 public:
  absl::Status SendDescriptor(uint64_t tag, v1::DescriptorKind kind, int fd) override {
    if (!result.ok()) return result;
    EXPECT_EQ(sent.count(tag), 0u) << "a tag was used twice";
    sent[tag] = {kind, UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0))};
    return absl::OkStatus();
  }

  struct Sent {
    v1::DescriptorKind kind;
    UniqueFd fd;
  };
  std::map<uint64_t, Sent> sent;
  absl::Status result;
};

// The outcome of one call.
template <typename Reply>
struct Outcome {
  Reply reply;
  int answers = 0;
  absl::Status status;

  [[nodiscard]] bool ok() const { return answers == 1 && status.ok(); }
};

class SessionBed {
 public:
  explicit SessionBed(const SessionLimits& limits = {}, uint32_t engine_count = 1)
      : budget(uint64_t{1} << 40) {
    for (uint32_t index = 0; index < engine_count; ++index) {
      if (index != 0) {
        further_paths.push_back(std::make_unique<testing::FakeDataPath>());
        device.AddPath(further_paths.back().get());
      }
      engine::EngineOptions options;
      options.index = index;
      engines.push_back(engine::Engine::Create(options).value());
      engines.back()->AddDataPath(index == 0 ? &path : further_paths.back().get());
      engines.back()->proxy().SetEventSink(&router);
      environment.engines.push_back(&engines.back()->proxy());
    }
    devices.Add(&device);
    environment.devices = &devices;
    environment.connection_manager = &manager;
    environment.router = &router;
    environment.pool_budget = &budget;
    environment.host = &host;
    environment.clock = [] { return device::TimeNs{0}; };
    session = std::make_unique<Session>(environment, SessionIdentity{1, "test", 2, 3, 4}, limits,
                                        &sender);
  }
  // Closes what a test left open and looks for what is left behind.
  ~SessionBed() {
    if (session != nullptr) Close();
    EXPECT_EQ(router.count(), 0u);
    EXPECT_EQ(budget.in_use_bytes(), 0u);
    EXPECT_EQ(manager.endpoints, 0);
    EXPECT_TRUE(device.groups.empty());
    EXPECT_EQ(device.slowness.objects, 0);
    EXPECT_EQ(device.parts, 0);
  }

  // Lets engine, slow work and answers run until nothing happens any more.
  void Settle() {
    do {
      const std::vector<std::function<void()>> slow = std::exchange(host.slow, {});
      for (const std::function<void()>& work : slow) work();
      SettleButSlow();
    } while (!host.slow.empty());
  }
  // Slow work stays where it is.
  void SettleButSlow() {
    for (int quiet = 0; quiet < 3;) {
      int work = 0;
      for (uint32_t index = 0; index < engines.size(); ++index) work += Turn(index);
      quiet = work == 0 ? quiet + 1 : 0;
    }
  }
  // One engine's turn, and what comes of it.
  int Turn(uint32_t engine) {
    const int work = engines[engine]->DoWork(0);
    engines[engine]->proxy().Poll();
    return work;
  }

  void Open() {
    absl::Status status = absl::UnknownError("not answered");
    absl::StatusOr<AttachGift> given =
        session->Open([&](absl::Status result) { status = std::move(result); });
    ASSERT_TRUE(given.ok()) << given.status();
    gift = std::move(*given);
    Settle();
    ASSERT_TRUE(status.ok()) << status;
  }

  // Starts a call; the outcome is filled in by Settle().
  template <typename Request, typename Reply>
  std::shared_ptr<Outcome<Reply>> Start(void (Session::*method)(const Request&, Reply*,
                                                                Session::Done),
                                        const Request& request) {
    auto outcome = std::make_shared<Outcome<Reply>>();
    (session.get()->*method)(request, &outcome->reply, [outcome](absl::Status status) {
      ++outcome->answers;
      outcome->status = std::move(status);
    });
    return outcome;
  }
  template <typename Request, typename Reply>
  Outcome<Reply> Call(void (Session::*method)(const Request&, Reply*, Session::Done),
                      const Request& request) {
    auto outcome = Start(method, request);
    Settle();
    EXPECT_EQ(outcome->answers, 1);
    return *outcome;
  }

  // Ends the session and waits for its end.
  void Close() {
    int closed = 0;
    session->Close([&closed] { ++closed; });
    Settle();
    EXPECT_EQ(closed, 1);
    session.reset();
  }

  Handle MakePd() { return Call(&Session::AllocPd, v1::AllocPdRequest()).reply.pd(); }
  Handle MakePool(uint64_t bytes = 4096) {
    v1::CreatePoolRequest request;
    request.set_size_bytes(bytes);
    return Call(&Session::CreatePool, request).reply.pool();
  }
  static v1::CreateCqRequest CqRequest(uint32_t depth = 16, Handle channel = kNoHandle) {
    v1::CreateCqRequest request;
    request.set_depth(depth);
    request.set_channel(channel);
    return request;
  }
  Handle MakeCq(Handle channel = kNoHandle) {
    return Call(&Session::CreateCq, CqRequest(16, channel)).reply.cq();
  }
  Handle MakeChannel() {
    return Call(&Session::CreateCompletionChannel, v1::CreateCompletionChannelRequest())
        .reply.channel();
  }
  static v1::CreateQpRequest QpRequest(Handle pd, Handle cq) {
    v1::CreateQpRequest request;
    request.set_pd(pd);
    request.set_qp_type(2);
    request.set_send_cq(cq);
    request.set_recv_cq(cq);
    request.mutable_cap()->set_max_send_wr(8);
    request.mutable_cap()->set_max_recv_wr(8);
    request.mutable_cap()->set_max_send_sge(1);
    request.mutable_cap()->set_max_recv_sge(1);
    return request;
  }
  Handle MakeQp(Handle pd, Handle cq) {
    return Call(&Session::CreateQp, QpRequest(pd, cq)).reply.qp();
  }
  static v1::CreateQpRequest UdQpRequest(Handle pd, Handle cq) {
    v1::CreateQpRequest request = QpRequest(pd, cq);
    request.set_qp_type(4);
    return request;
  }
  Handle MakeUdQp(Handle pd, Handle cq) {
    return Call(&Session::CreateQp, UdQpRequest(pd, cq)).reply.qp();
  }
  static v1::CreateSrqRequest SrqRequest(Handle pd, uint32_t limit = 0) {
    v1::CreateSrqRequest request;
    request.set_pd(pd);
    request.set_max_wr(8);
    request.set_max_sge(1);
    request.set_limit(limit);
    return request;
  }
  Handle MakeSrq(Handle pd) { return Call(&Session::CreateSrq, SrqRequest(pd)).reply.srq(); }
  // The GID of 10.0.0.`host`.
  static std::string HostGid(uint8_t host) { return GidOf(IpAddress::FromV4(10, 0, 0, host)); }
  // The GID of 239.0.0.`group`.
  static std::string GroupGid(uint8_t group) { return GidOf(Group(group)); }
  static IpAddress Group(uint8_t group) { return IpAddress::FromV4(239, 0, 0, group); }
  static std::string GidOf(const IpAddress& address) {
    return {address.gid().begin(), address.gid().end()};
  }
  static v1::CreateAhRequest AhRequest(Handle pd, uint8_t host = 1) {
    v1::CreateAhRequest request;
    request.set_pd(pd);
    request.mutable_attr()->set_dest_gid(HostGid(host));
    request.mutable_attr()->set_hop_limit(64);
    return request;
  }
  static v1::AllocMwRequest MwRequest(Handle pd, uint32_t type = 2) {
    v1::AllocMwRequest request;
    request.set_pd(pd);
    request.set_type(type);
    return request;
  }
  static v1::AttachMulticastRequest AttachRequest(Handle qp, uint8_t group = 1) {
    v1::AttachMulticastRequest request;
    request.set_qp(qp);
    request.set_gid(GroupGid(group));
    return request;
  }
  static v1::DetachMulticastRequest DetachRequest(Handle qp, uint8_t group = 1) {
    v1::DetachMulticastRequest request;
    request.set_qp(qp);
    request.set_gid(GroupGid(group));
    return request;
  }
  // The records that wait in the session's async channel.
  std::vector<shm::AsyncEvent> ReadAsync() {
    fcntl(gift.async_channel.get(), F_SETFL, O_NONBLOCK);
    std::vector<shm::AsyncEvent> events;
    shm::AsyncEvent event{};
    while (read(gift.async_channel.get(), &event, sizeof(event)) ==
           static_cast<ssize_t>(sizeof(event))) {
      events.push_back(event);
    }
    return events;
  }
  static v1::RegisterRegionRequest RegionRequest(Handle pd, Handle pool, uint64_t offset,
                                                 uint64_t length) {
    v1::RegisterRegionRequest request;
    request.set_pd(pd);
    request.set_pool(pool);
    request.set_offset_bytes(offset);
    request.set_length_bytes(length);
    request.set_iova(0x10000);
    request.set_access(1);
    return request;
  }
  Handle MakeRegion(Handle pd, Handle pool) {
    return Call(&Session::RegisterRegion, RegionRequest(pd, pool, 0, 4096)).reply.region();
  }
  Handle MakeEventChannel() {
    return Call(&Session::CreateEventChannel, v1::CreateEventChannelRequest()).reply.channel();
  }
  Handle MakeId(Handle channel) {
    v1::CreateIdRequest request;
    request.set_channel(channel);
    request.set_port_space(0x0106);
    return Call(&Session::CreateId, request).reply.id();
  }

  testing::FakeDataPath path;
  testing::FakeDevice device{&path};
  FakeConnectionManager manager;
  std::vector<std::unique_ptr<testing::FakeDataPath>> further_paths;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  EventRouter router;
  HostBudget budget;
  FakeHost host;
  FakeSender sender;
  DeviceList devices;
  SessionEnvironment environment;
  AttachGift gift;
  std::unique_ptr<Session> session;
};

}  // namespace rdmad::session
