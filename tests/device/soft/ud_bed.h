// Datagram QPs on a fake network: each with memory, completions, events and an address handle to
// the others.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/device/soft/soft_ah.h"
#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_qp.h"
#include "daemon/device/soft/ud_qp.h"
#include "daemon/wire/grh.h"
#include "tests/support/soft_bed.h"

namespace rdmad::soft {

inline constexpr uint32_t kTestQkey = 0x11111111;

struct UdEndpoint {
  Transport* transport = nullptr;
  EventLog* events = nullptr;
  IpAddress address;
  SoftPd pd;
  CompletionLog sends;
  CompletionLog receives;
  SoftCq send_cq{1024, &sends};
  SoftCq recv_cq{1024, &receives};
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  std::unique_ptr<SoftMr> mr;
  std::unique_ptr<SoftSrq> srq;
  std::unique_ptr<UdQp> qp;

  device::Sge Sge(uint64_t offset, uint32_t bytes) const {
    return {Endpoint::kIova + offset, bytes, mr->lkey()};
  }
};

class UdBed {
 public:
  struct Options {
    Path path = Path::kWire;
    bool ipv6 = false;
    bool srq = false;  // b's
    device::Mtu mtu = device::Mtu::k1024;
    TransportConfig config{};
  };

  explicit UdBed(const Options& options) : options_(options) {
    const int hosts = options.path == Path::kLocal ? 1 : 2;
    for (int i = 0; i < hosts; ++i) {
      events_.push_back(std::make_unique<EventLog>());
      transports_.push_back(
          std::make_unique<Transport>(network.tx(), events_.back().get(), options.config));
    }
    Prepare(a, 0, options.ipv6 ? "2001:db8::1" : "10.0.0.1", 0x11, false);
    Prepare(b, hosts - 1, options.ipv6 ? "2001:db8::2" : "10.0.0.2", 0x12, options.srq);
    ah = MakeAh(a, b.address);
  }
  ~UdBed() {
    for (UdEndpoint* end : {&a, &b}) {
      end->qp->Deactivate(network.now());
      end->mr->Deactivate(network.now());
    }
  }

  std::unique_ptr<SoftAh> MakeAh(const UdEndpoint& from, const IpAddress& dest) const {
    auto made = SoftAh::Create(from.pd, {.dest = dest, .traffic_class = 0x23, .hop_limit = 7},
                               SourceOf(from.address));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(*made);
  }
  SourceLookup SourceOf(const IpAddress& address) const {
    return [address, mtu = options_.mtu](uint32_t index, SourceAddress* out) {
      *out = {address, mtu};
      return index == 0;
    };
  }

  void ToRts(UdEndpoint& end, uint32_t qkey = kTestQkey) {
    ToInit(end, qkey);
    Move(end, device::QpState::kRtr);
    Move(end, device::QpState::kRts, device::kQpAttrSqPsn);
  }
  void ToInit(UdEndpoint& end, uint32_t qkey = kTestQkey) {
    device::QpAttr attr;
    attr.mask =
        device::kQpAttrState | device::kQpAttrPkeyIndex | device::kQpAttrPort | device::kQpAttrQkey;
    attr.state = device::QpState::kInit;
    attr.qkey = qkey;
    ASSERT_EQ(end.qp->Modify(attr, network.now()), device::QpResult::kOk);
  }
  void Move(UdEndpoint& end, device::QpState state, uint32_t more = 0) {
    device::QpAttr attr;
    attr.mask = device::kQpAttrState | more;
    attr.state = state;
    attr.sq_psn = 0xfffffe;
    ASSERT_EQ(end.qp->Modify(attr, network.now()), device::QpResult::kOk);
  }

  // From a to b, unless the caller changes it.
  device::SendWr Wr(uint64_t wr_id, const device::Sge* sge) const {
    device::SendWr wr{};
    wr.wr_id = wr_id;
    wr.opcode = device::WrOpcode::kSend;
    wr.flags = shm::kWorkSignaled;
    if (sge != nullptr) wr.sges = {sge, 1};
    wr.ah = ah.get();
    wr.remote_qpn = b.qp->qpn();
    wr.remote_qkey = kTestQkey;
    return wr;
  }
  device::PostResult Send(uint64_t wr_id, uint32_t bytes) {
    const device::Sge sge = a.Sge(0, bytes);
    return a.qp->PostSend(Wr(wr_id, &sge), network.now());
  }
  device::PostResult Recv(uint64_t wr_id, uint64_t offset, uint32_t bytes) {
    const device::Sge sge = b.Sge(offset, bytes);
    const device::RecvWr wr{.wr_id = wr_id, .sges = {&sge, 1}};
    return b.srq != nullptr ? b.srq->PostRecv(wr) : b.qp->PostRecv(wr, network.now());
  }
  bool Await(const CompletionLog& log, size_t count) {
    return network.RunUntil([&] { return log.all.size() >= count; }, 1'000'000'000);
  }
  uint64_t Counter(const UdEndpoint& end, const std::string& name) const {
    for (const auto& counter : end.transport->counters().Snapshot()) {
      if (name == counter.name) return counter.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

 private:
  void Prepare(UdEndpoint& end, int host, const std::string& address, uint32_t qpn, bool srq) {
    end.transport = transports_[static_cast<size_t>(host)].get();
    end.events = events_[static_cast<size_t>(host)].get();
    end.address = *IpAddress::Parse(address);
    end.transport->AddLocalAddress(end.address);
    network.Attach(end.address, end.transport);
    for (size_t i = 0; i < end.memory.size(); ++i)
      end.memory[i] = static_cast<std::byte>(i * 7 + qpn);
    end.mr = std::move(*SoftMr::Create(*end.transport, end.pd,
                                       {.host_addr = end.memory.data(),
                                        .length_bytes = end.memory.size(),
                                        .iova = Endpoint::kIova,
                                        .access = device::kAccessLocalWrite}));
    end.mr->Activate(0);
    if (srq) {
      end.srq = std::move(*SoftSrq::Create(end.events, end.pd, {.max_wr = 16, .max_sge = 4}));
    }
    SoftQpInit init;
    init.qpn = qpn;
    init.pd = &end.pd;
    init.init.type = device::QpType::kUd;
    init.init.send_cq = &end.send_cq;
    init.init.recv_cq = &end.recv_cq;
    init.init.srq = end.srq.get();
    init.init.cookie = qpn * 100;
    init.cap = {64, 64, 4, 4, 256};
    init.source = SourceOf(end.address);
    auto qp = UdQp::Create(*end.transport, init);
    ASSERT_TRUE(qp.ok()) << qp.status().ToString();
    end.qp = std::move(*qp);
    end.qp->Activate(0);
  }

  const Options options_;
  std::vector<std::unique_ptr<EventLog>> events_;
  std::vector<std::unique_ptr<Transport>> transports_;

 public:
  FakeNetwork network;
  UdEndpoint a;
  UdEndpoint b;
  std::unique_ptr<SoftAh> ah;  // of a, to b
};

}  // namespace rdmad::soft
