// Two connected QPs of the soft transport, with memory, completions and events at hand, on a fake
// network.
//
// With `Path::kLocal` both live on one transport, so that messages take the local path; with
// `Path::kWire` on two.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/soft_srq.h"
#include "daemon/device/soft/transport_counters.h"
#include "tests/support/fake_network.h"

namespace rdmad::soft {

enum class Path { kWire, kLocal };

class CompletionLog : public device::CompletionSink {
 public:
  void OnCompletion(const device::Wc& wc) noexcept override { all.push_back(wc); }
  std::vector<device::Wc> all;
};

class EventLog : public device::AsyncSink {
 public:
  void OnAsyncEvent(const device::AsyncEvent& event) noexcept override { all.push_back(event); }
  size_t Count(device::AsyncEventType type) const {
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [type](const auto& e) { return e.type == type; }));
  }
  std::vector<device::AsyncEvent> all;
};

// One QP and what belongs to it.
struct Endpoint {
  Transport* transport = nullptr;
  EventLog* events = nullptr;
  IpAddress address;
  SoftPd pd;
  CompletionLog sends;
  CompletionLog receives;
  SoftCq send_cq{1024, &sends};
  SoftCq recv_cq{1024, &receives};
  std::vector<std::byte> memory;
  std::unique_ptr<SoftMr> mr;
  std::unique_ptr<SoftSrq> srq;
  std::unique_ptr<SoftQp> qp;

  // The application's address of byte `offset`: not the address where the daemon has it.
  static constexpr uint64_t kIova = 0x7000'0000'0000;
  uint64_t Address(uint64_t offset) const { return kIova + offset; }
  device::Sge Sge(uint64_t offset, uint32_t bytes) const {
    return {Address(offset), bytes, mr->lkey()};
  }
};

struct BedOptions {
  Path path = Path::kWire;
  device::QpType type = device::QpType::kRc;  // or kUc
  NetworkFaults faults;
  TransportConfig config;
  size_t memory_bytes = 4 << 20;
  uint32_t queue_depth = 64;
  device::Mtu mtu = device::Mtu::k1024;
  uint32_t psn_a = 0x000100;
  uint32_t psn_b = 0xfffffe;
  uint8_t timeout = 14;
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 1;
  uint8_t rd_atomic = 4;
  uint32_t access = device::kAccessAll & ~device::kAccessMwBind;         // of the QPs
  uint32_t region_access = device::kAccessAll & ~device::kAccessMwBind;  // of the regions
  bool signal_all = false;
  uint32_t srq_wr = 0;  // not 0: b receives from an SRQ of this depth
  bool connect = true;
};

class Bed {
 public:
  static constexpr uint64_t kSrqToken = 77;

  explicit Bed(const BedOptions& options = {}) : options_(options), network(options.faults) {
    const int hosts = options.path == Path::kLocal ? 1 : 2;
    for (int i = 0; i < hosts; ++i) {
      events_.push_back(std::make_unique<EventLog>());
      transports_.push_back(
          std::make_unique<Transport>(network.tx(), events_.back().get(), options.config));
    }
    if (options.srq_wr != 0) {
      const device::SrqInit init{.max_wr = options.srq_wr, .max_sge = 4, .owner_token = kSrqToken};
      auto srq = SoftSrq::Create(events_.back().get(), b.pd, init);
      EXPECT_TRUE(srq.ok());
      b.srq = std::move(*srq);
    }
    Prepare(a, 0, IpAddress::FromV4(10, 0, 0, 1), 0x11);
    Prepare(b, hosts - 1, IpAddress::FromV4(10, 0, 0, 2), 0x12);
    if (options.connect) Connect();
  }
  ~Bed() {
    EXPECT_EQ(network.malformed(), 0u);
    for (Endpoint* endpoint : {&a, &b}) {
      if (endpoint->qp != nullptr) endpoint->qp->Deactivate(network.now());
      if (endpoint->mr != nullptr) endpoint->mr->Deactivate(network.now());
      endpoint->qp.reset();
      endpoint->srq.reset();
      endpoint->mr.reset();
    }
  }

  void Connect() {
    ToRts(a, b, options_.psn_a, options_.psn_b);
    ToRts(b, a, options_.psn_b, options_.psn_a);
  }
  void ToRts(Endpoint& from, const Endpoint& to, uint32_t sq_psn, uint32_t rq_psn) {
    ToInit(from);
    ToRtr(from, to, rq_psn);
    RtrToRts(from, sq_psn);
  }
  void ToInit(Endpoint& endpoint) {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort |
                device::kQpAttrAccessFlags;
    attr.state = device::QpState::kInit;
    attr.access_flags = options_.access;
    ASSERT_EQ(endpoint.qp->Modify(attr, network.now()), device::QpResult::kOk);
  }
  void ToRtr(Endpoint& from, const Endpoint& to, uint32_t rq_psn) {
    ASSERT_EQ(from.qp->Modify(RtrAttr(to, rq_psn), network.now()), device::QpResult::kOk);
  }
  device::QpAttr RtrAttr(const Endpoint& to, uint32_t rq_psn) const {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrAv | device::kQpAttrPathMtu |
                device::kQpAttrDestQpn | device::kQpAttrRqPsn;
    if (options_.type == device::QpType::kRc) {
      attr.mask |= device::kQpAttrMaxDestRdAtomic | device::kQpAttrMinRnrTimer;
    }
    attr.state = device::QpState::kRtr;
    attr.av.dest = to.address;
    attr.path_mtu = options_.mtu;
    attr.dest_qpn = to.qp->qpn();
    attr.rq_psn = rq_psn;
    attr.max_dest_rd_atomic = options_.rd_atomic;
    attr.min_rnr_timer = options_.min_rnr_timer;
    return attr;
  }
  void RtrToRts(Endpoint& endpoint, uint32_t sq_psn) {
    ASSERT_EQ(endpoint.qp->Modify(RtsAttr(sq_psn), network.now()), device::QpResult::kOk);
  }
  device::QpAttr RtsAttr(uint32_t sq_psn) const {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrSqPsn;
    if (options_.type == device::QpType::kRc) {
      attr.mask |= device::kQpAttrTimeout | device::kQpAttrRetryCnt | device::kQpAttrRnrRetry |
                   device::kQpAttrMaxQpRdAtomic;
    }
    attr.state = device::QpState::kRts;
    attr.sq_psn = sq_psn;
    attr.timeout = options_.timeout;
    attr.retry_count = options_.retry_count;
    attr.rnr_retry = options_.rnr_retry;
    attr.max_rd_atomic = options_.rd_atomic;
    return attr;
  }
  device::QpResult MoveTo(Endpoint& endpoint, device::QpState state) {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState;
    attr.state = state;
    return endpoint.qp->Modify(attr, network.now());
  }

  // To kSqd, which is to be told of.
  device::QpResult Drain(Endpoint& endpoint) {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | device::kQpAttrEnSqdAsyncNotify;
    attr.state = device::QpState::kSqd;
    attr.en_sqd_async_notify = true;
    return endpoint.qp->Modify(attr, network.now());
  }

  // A signaled WR of `opcode` with one SGE; the caller changes what he wants otherwise.
  device::SendWr Wr(uint64_t wr_id, device::WrOpcode opcode, const device::Sge* sge,
                    uint64_t remote_offset = 0) {
    device::SendWr wr{};
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.flags = shm::kWorkSignaled;
    if (sge != nullptr) wr.sges = {sge, 1};
    wr.remote_addr = Endpoint::kIova + remote_offset;
    wr.rkey = b.mr->rkey();
    return wr;
  }
  device::PostResult Post(Endpoint& endpoint, const device::SendWr& wr) {
    return endpoint.qp->PostSend(wr, network.now());
  }
  device::PostResult PostRecv(Endpoint& endpoint, uint64_t wr_id, uint64_t offset, uint32_t bytes) {
    const device::Sge sge = endpoint.Sge(offset, bytes);
    const device::RecvWr wr{.wr_id = wr_id, .sges = {&sge, 1}};
    return endpoint.srq != nullptr ? endpoint.srq->PostRecv(wr)
                                   : endpoint.qp->PostRecv(wr, network.now());
  }
  // Fills `bytes` of a's memory at `offset` with bytes that depend on the seed.
  void Fill(Endpoint& endpoint, uint64_t offset, size_t bytes, uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < bytes; ++i) {
      endpoint.memory[offset + i] = static_cast<std::byte>(random() >> 32);
    }
  }
  bool Same(uint64_t a_offset, uint64_t b_offset, size_t bytes) const {
    return std::memcmp(a.memory.data() + a_offset, b.memory.data() + b_offset, bytes) == 0;
  }
  // Until `log` has `count` completions.
  bool Await(const CompletionLog& log, size_t count, TimeNs limit = 60'000'000'000) {
    return network.RunUntil([&] { return log.all.size() >= count; }, limit);
  }
  uint64_t Counter(const Endpoint& endpoint, const std::string& name) const {
    for (const auto& counter : endpoint.transport->counters().Snapshot()) {
      if (name == counter.name) return counter.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

 private:
  void Prepare(Endpoint& endpoint, int host, const IpAddress& address, uint32_t qpn) {
    endpoint.transport = transports_[static_cast<size_t>(host)].get();
    endpoint.events = events_[static_cast<size_t>(host)].get();
    endpoint.address = address;
    endpoint.transport->AddLocalAddress(address);
    network.Attach(address, endpoint.transport);
    endpoint.memory.resize(options_.memory_bytes);
    auto mr = SoftMr::Create(*endpoint.transport, endpoint.pd,
                             {.host_addr = endpoint.memory.data(),
                              .length_bytes = endpoint.memory.size(),
                              .iova = Endpoint::kIova,
                              .access = options_.region_access});
    ASSERT_TRUE(mr.ok()) << mr.status().ToString();
    endpoint.mr = std::move(*mr);
    endpoint.mr->Activate(network.now());
    SoftQpInit init;
    init.qpn = qpn;
    init.pd = &endpoint.pd;
    init.init.type = options_.type;
    init.init.send_cq = &endpoint.send_cq;
    init.init.recv_cq = &endpoint.recv_cq;
    init.init.srq = endpoint.srq.get();
    init.init.cookie = qpn * 100;
    init.init.owner_token = qpn * 1000;
    init.init.signal_all = options_.signal_all;
    init.cap = {options_.queue_depth, options_.queue_depth, kMaxSge, kMaxSge, kMaxInlineBytes};
    init.source = [address](uint32_t index, SourceAddress* out) {
      if (index != 0) return false;
      out->address = address;
      return true;
    };
    auto qp = SoftQp::Create(*endpoint.transport, init);
    ASSERT_TRUE(qp.ok()) << qp.status().ToString();
    endpoint.qp = std::move(*qp);
    endpoint.qp->Activate(network.now());
  }

  const BedOptions options_;
  std::vector<std::unique_ptr<EventLog>> events_;
  std::vector<std::unique_ptr<Transport>> transports_;

 public:
  FakeNetwork network;
  Endpoint a;
  Endpoint b;
};

// For parametrized suites that must hold on both paths.
class PathTest : public ::testing::TestWithParam<Path> {
 protected:
  static BedOptions Options() {
    BedOptions options;
    options.path = GetParam();
    return options;
  }
};
inline std::string PathName(const ::testing::TestParamInfo<Path>& info) {
  return info.param == Path::kWire ? "Wire" : "Local";
}
#define RDMAD_ON_BOTH_PATHS(Suite) \
  INSTANTIATE_TEST_SUITE_P(Path, Suite, ::testing::Values(Path::kWire, Path::kLocal), PathName)

}  // namespace rdmad::soft
