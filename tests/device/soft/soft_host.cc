#include "tests/device/soft/soft_host.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "daemon/base/check.h"
#include "proto/shm/work_queue.h"

namespace rdmad::soft::testing {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return std::move(value).value();
}

constexpr uint32_t kDepth = 256;

}  // namespace

device::TimeNs MonotonicNow() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

SoftDevicesHooks EngineOfThisThread() {
  SoftDevicesHooks hooks;
  hooks.activate = [](uint32_t, device::EngineObject& object, const std::function<void()>& done) {
    object.Activate(MonotonicNow());
    done();
  };
  hooks.deactivate = [](uint32_t, device::EngineObject& object, const std::function<void()>& done) {
    object.Deactivate(MonotonicNow());
    done();
  };
  return hooks;
}

SoftHost::SoftHost(const std::vector<std::string>& only, uint16_t udp_port,
                   const SoftHostOptions& options)
    : mads(Must(SoftMadIo::Create())), qpns(1), options_(options) {
  TransportConfig transport;
  transport.local_path = options.local_path;
  SoftDeviceContext context;
  std::vector<StrayRing*> all_rings;
  for (uint32_t engine = 0; engine < options.engines; ++engine) {
    rings.push_back(Must(StrayRing::Create()));
    all_rings.push_back(rings.back().get());
    paths.push_back(Must(SoftDataPath::Create(mads->AddRing(), this, transport)));
    context.paths.push_back(paths.back().get());
  }
  const auto keys = std::make_shared<MrKeys>();
  for (uint32_t engine = 0; options.engines > 1 && engine < options.engines; ++engine) {
    RD_CHECK(paths[engine]->JoinEngines(engine, all_rings, keys).ok());
  }
  path = paths.front().get();
  context.qpns = &qpns;
  context.clock = MonotonicNow;
  SoftDevicesConfig config;
  config.only = only;
  config.udp_port = udp_port;
  config.socket.steer = options.steer;
  devices = Must(SoftDevices::Create(config, context, mads.get(), EngineOfThisThread()));
  for (const SoftDeviceProblem& problem : devices->problems()) {
    std::fprintf(stderr, "%s: %s\n", problem.what.c_str(), problem.why.c_str());
  }
  for (uint32_t engine = 0; options.one_thread && engine < options.engines; ++engine) {
    ActivatePorts(engine);
  }
}

SoftHost::~SoftHost() {
  for (uint32_t engine = 0; options_.one_thread && engine < options_.engines; ++engine) {
    DeactivatePorts(engine);
  }
  devices.reset();
}

void SoftHost::ActivatePorts(uint32_t engine) {
  for (const device::EnginePart& part : devices->ports()) {
    if (part.engine == engine) part.object->Activate(MonotonicNow());
  }
}

void SoftHost::DeactivatePorts(uint32_t engine) {
  for (const device::EnginePart& part : devices->ports()) {
    if (part.engine == engine) part.object->Deactivate(MonotonicNow());
  }
}

uint64_t SoftHost::Value(const std::vector<device::CounterValue>& values, const std::string& name) {
  for (const device::CounterValue& value : values) {
    if (value.name == name) return value.value;
  }
  std::fprintf(stderr, "no counter is called %s\n", name.c_str());
  std::abort();
}

RcEnd::RcEnd(SoftHost& owner, size_t buffer_bytes, size_t device_index, uint32_t engine)
    : host(owner), buffer(buffer_bytes), device_index_(device_index) {
  SoftDevice& device = host.device(device_index);
  pd = Must(device.AllocPd());
  send_cq = Must(device.CreateCq(kDepth, &sends));
  recv_cq = Must(device.CreateCq(kDepth, &receives));
  mr = Must(device.RegisterMr(
      *pd, {buffer.data(), buffer.size(), reinterpret_cast<uint64_t>(buffer.data()),
            device::kAccessAll & ~uint32_t{device::kAccessMwBind}},
      engine));
  device::QpInit init;
  init.send_cq = send_cq.get();
  init.recv_cq = recv_cq.get();
  init.cap = {kDepth, kDepth, 4, 4, 256};
  qp = Must(device.CreateQp(*pd, init, engine));
  for (device::EngineObject* object : std::initializer_list<device::EngineObject*>{
           pd.get(), send_cq.get(), recv_cq.get(), mr.get(), qp.get()}) {
    object->Activate(MonotonicNow());
  }
}

RcEnd::~RcEnd() {
  for (device::EngineObject* object : std::initializer_list<device::EngineObject*>{
           qp.get(), mr.get(), recv_cq.get(), send_cq.get(), pd.get()}) {
    object->Deactivate(MonotonicNow());
  }
  qp.reset();
}

IpAddress RcEnd::address(uint32_t sgid_index) const {
  for (const device::GidEntry& entry : host.device(device_index_).Gids()) {
    if (entry.index == sgid_index) return entry.address;
  }
  std::abort();
}

void RcEnd::Connect(RcEnd& a, RcEnd& b, device::Mtu mtu, uint32_t sgid_index) {
  a.ConnectTo(b, mtu, sgid_index);
  b.ConnectTo(a, mtu, sgid_index);
}

void RcEnd::ConnectTo(const RcEnd& peer, device::Mtu mtu, uint32_t sgid_index) {
  using namespace device;  // NOLINT: the names below are all of that room
  QpAttr attr;
  attr.mask = kQpAttrState | kQpAttrAccessFlags | kQpAttrPkeyIndex | kQpAttrPort;
  attr.state = QpState::kInit;
  attr.access_flags = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
  RD_CHECK(qp->Modify(attr, MonotonicNow()) == QpResult::kOk);
  attr.mask = kQpAttrState | kQpAttrAv | kQpAttrPathMtu | kQpAttrDestQpn | kQpAttrRqPsn |
              kQpAttrMaxDestRdAtomic | kQpAttrMinRnrTimer;
  attr.state = QpState::kRtr;
  attr.av.dest = peer.address(sgid_index).WithScope(0);  // a GID, as the peer would send it
  attr.av.sgid_index = sgid_index;
  attr.path_mtu = mtu;
  attr.dest_qpn = peer.qp->qpn();
  attr.rq_psn = 0xfffff0;
  attr.max_dest_rd_atomic = 16;
  attr.min_rnr_timer = 1;
  RD_CHECK(qp->Modify(attr, MonotonicNow()) == QpResult::kOk);
  attr.mask = kQpAttrState | kQpAttrSqPsn | kQpAttrTimeout | kQpAttrRetryCnt | kQpAttrRnrRetry |
              kQpAttrMaxQpRdAtomic;
  attr.state = QpState::kRts;
  attr.sq_psn = 0xfffff0;
  attr.timeout = 14;  // 67 ms
  attr.retry_count = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = 16;
  RD_CHECK(qp->Modify(attr, MonotonicNow()) == QpResult::kOk);
}

device::PostResult RcEnd::Send(device::WrOpcode opcode, size_t offset, uint32_t bytes,
                               const RcEnd* remote, size_t remote_offset) {
  const device::Sge sge = {reinterpret_cast<uint64_t>(&buffer[offset]), bytes, mr->lkey()};
  device::SendWr wr{};
  wr.wr_id = next_wr_id_++;
  wr.opcode = opcode;
  wr.flags = shm::kWorkSignaled;
  wr.sges = {&sge, 1};
  if (remote != nullptr) {
    wr.remote_addr = reinterpret_cast<uint64_t>(&remote->buffer[remote_offset]);
    wr.rkey = remote->mr->rkey();
  }
  return qp->PostSend(wr, MonotonicNow());
}

device::PostResult RcEnd::Recv(size_t offset, uint32_t bytes) {
  const device::Sge sge = {reinterpret_cast<uint64_t>(&buffer[offset]), bytes, mr->lkey()};
  return qp->PostRecv({next_wr_id_++, {&sge, 1}}, MonotonicNow());
}

void RcEnd::FillRandomly(uint32_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < buffer.size(); at += sizeof(uint64_t)) {
    const uint64_t bytes = random();
    std::memcpy(&buffer[at], &bytes, std::min(sizeof(bytes), buffer.size() - at));
  }
}

}  // namespace rdmad::soft::testing
