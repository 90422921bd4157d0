// A client that writes whatever it likes into all that it shares with the engine (work queues,
// completion queue, doorbells), at any time: the engine's own ports, on queue pairs of a live soft
// device whose peers are on the same transport, so that what is taken is executed at once.
//
// The changes come between turns, so that an input means the same each time; what they do within
// one is engine_race_test's.
#include <fcntl.h>
#include <unistd.h>

#include <new>

#include "daemon/engine/engine.h"
#include "daemon/engine/engine_proxy.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/work_queue.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/live_qp.h"
#include "tests/fuzz/targets.h"

namespace rdmad::fuzz {
namespace {

constexpr uint32_t kSlots = 16;
constexpr uint32_t kCqes = 64;

// Zeroed memory as an arena gives it.
class Shared {
 public:
  explicit Shared(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{128}))) {
    std::memset(data_, 0, bytes);
  }
  ~Shared() { ::operator delete[](data_, std::align_val_t{128}); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  std::byte* data() const { return data_; }
  void Scribble(uint32_t offset, std::span<const uint8_t> bytes) const {
    for (size_t i = 0; i < bytes.size(); ++i) data_[(offset + i) % bytes_] = std::byte{bytes[i]};
  }

 private:
  const size_t bytes_;
  std::byte* const data_;
};

// All soft devices of an engine, but for their sockets.
class Path : public device::DataPath {
 public:
  explicit Path(device::AsyncSink* async) : transport(&wire, async) {}
  int DoWork(device::TimeNs now) noexcept override { return transport.DoWork(now); }
  device::TimeNs NextDeadline(device::TimeNs now) noexcept override {
    return transport.NextDeadline(now);
  }
  std::span<const int> PollFds() const noexcept override { return {}; }
  uint32_t PollFdsGeneration() const noexcept override { return 0; }

  Discard wire;
  soft::Transport transport;
};

class Control : public engine::EngineEventSink {
 public:
  void OnQpAsyncEvent(const device::AsyncEvent&) override {}
  void OnSessionCorrupt(uint64_t, const char*) override {}
  void OnCqOverrun(uint64_t) override {}
};

// An engine in this thread. Made once.
struct Host {
  Host() {
    engine = std::move(engine::Engine::Create({}).value());
    path = std::make_unique<Path>(engine->async_sink());
    engine->AddDataPath(path.get());
    engine->proxy().SetEventSink(&control);
    path->transport.AddLocalAddress(own);
  }
  void Turn() {
    engine->DoWork(now += 1000);
    engine->proxy().Poll();
  }
  void Do(device::EngineObject& object, bool activate) {
    bool done = false;
    const auto answer = [&done] { done = true; };
    if (activate) {
      engine->proxy().Activate(object, answer);
    } else {
      engine->proxy().Deactivate(object, answer);
    }
    while (!done) Turn();
  }

  device::TimeNs now = 1'000'000'000;
  const IpAddress own = IpAddress::FromV4(10, 0, 0, 1);
  Control control;
  std::unique_ptr<Path> path;
  std::unique_ptr<engine::Engine> engine;
};

// A queue pair with everything that its client may write.
struct Pair {
  Shared sends{shm::WorkQueueBytes(kSlots)};
  Shared receives{shm::WorkQueueBytes(kSlots)};
  std::unique_ptr<LiveQp> qp;
  std::unique_ptr<engine::QueuePairPort> port;
};

// One session: an RC pair, a UC pair and two datagram QPs; the second of each receives from an SRQ.
struct Session {
  static constexpr device::QpType kTypes[] = {device::QpType::kRc, device::QpType::kUc,
                                              device::QpType::kUd};
  static constexpr uint32_t kQps = 2 * std::size(kTypes);
  static constexpr uint32_t kSrqDoorbell = kQps;

  explicit Session(Host& to) : host(to) {
    engine::EngineProxy& proxy = host.engine->proxy();
    engine::SessionPortInit init;
    init.control = control();
    init.session_token = 1;
    int wake[2];
    RD_CHECK(::pipe2(wake, O_CLOEXEC | O_NONBLOCK) == 0);
    init.wake_fd.Reset(wake[0]);
    wake_fd.Reset(wake[1]);
    session = proxy.CreateSessionPort(std::move(init));
    host.Do(*session, true);
    cq_port = proxy.CreateCqPort({.session = session.get(),
                                  .ring = cq_ring.data(),
                                  .capacity = kCqes,
                                  .cq_handle = 1,
                                  .cq_token = 1});
    host.Do(*cq_port, true);
    srq = std::move(soft::SoftSrq::Create(host.engine->async_sink(), memory.pd,
                                          {.max_wr = kSlots, .max_sge = 4, .owner_token = 100})
                        .value());
    host.Do(*srq, true);
    srq_port = proxy.CreateSrqPort({.session = session.get(),
                                    .srq = srq.get(),
                                    .ring = {srq_ring.data(), kSlots},
                                    .doorbell_index = kSrqDoorbell,
                                    .owner_token = 100});
    host.Do(*srq_port, true);
  }
  ~Session() {
    if (ah_port != nullptr) host.Do(*ah_port, false);
    for (Pair& pair : pairs) {
      if (pair.qp == nullptr) continue;
      host.Do(*pair.port, false);
      pair.qp.reset();
    }
    host.Do(*srq_port, false);
    host.Do(*srq, false);
    host.Do(*cq_port, false);
    host.Do(*session, false);
  }

  shm::ControlSegment* control() const {
    return reinterpret_cast<shm::ControlSegment*>(control_memory.data());
  }

  void Make(uint32_t i) {
    Pair& pair = pairs[i];
    const bool shares = i % 2 == 1;
    pair.qp =
        std::make_unique<LiveQp>(host.path->transport, *cq_port, host.own, 0x11 + i,
                                 LiveInit{kTypes[i / 2], shares ? srq.get() : nullptr, i + 1});
    pair.port = host.engine->proxy().CreateQueuePairPort(
        {.session = session.get(),
         .qp = pair.qp->qp.get(),
         .pd = &pair.qp->pd,
         .send_cq = cq_port.get(),
         .recv_cq = cq_port.get(),
         .send_ring = {pair.sends.data(), kSlots},
         .recv_ring = {shares ? nullptr : pair.receives.data(), kSlots},
         .doorbell_index = i,
         .owner_token = i + 1});
    host.Do(*pair.port, true);
  }

  // Connected to its neighbour. Made when an input first wants it: most want few.
  Pair& At(uint32_t i) {
    if (pairs[i].qp != nullptr) return pairs[i];
    for (const uint32_t each : {i, i ^ 1}) Make(each);
    for (const uint32_t each : {i, i ^ 1}) Connect(each);
    if (kTypes[i / 2] == device::QpType::kUd) MakeHandle(i);
    return pairs[i];
  }
  void MakeHandle(uint32_t i) {
    const soft::SoftPd& pd = pairs[i].qp->pd;
    ah = std::move(soft::SoftAh::Create(pd, {.dest = host.own}, SourceOf(host.own)).value());
    ah_port = host.engine->proxy().CreateAhPort(
        {.session = session.get(), .ah = ah.get(), .pd = &pd, .slot_handle = 1});
    host.Do(*ah_port, true);
  }

  // By way of control, as a session does.
  void Move(uint32_t i, QpState state) {
    Pair& pair = At(i);
    host.engine->proxy().ModifyQp(*pair.qp->qp, pair.qp->AttrFor(state, host.own, 0x11 + (i ^ 1)),
                                  [](device::QpResult) {});
    host.Turn();
  }
  void Connect(uint32_t i) {
    for (const QpState state : {QpState::kReset, QpState::kInit, QpState::kRtr, QpState::kRts}) {
      Move(i, state);
    }
  }

  // A WR that may be good, behind all others, and the bell.
  void Post(uint32_t which, uint8_t how, std::span<const uint8_t> from) {
    shm::WorkSlot slot{};
    std::memcpy(static_cast<void*>(&slot), from.data(), std::min(from.size(), sizeof(slot)));
    const bool to_srq = which == kSrqDoorbell;
    const Pair& pair = At(to_srq ? 1 : which);
    const LiveMemory& own = to_srq ? memory : *pair.qp;
    const LiveQp& peer = *At((to_srq ? 1 : which) ^ 1).qp;
    if ((how & 1) != 0) {
      slot.rkey = peer.mr->rkey();
      slot.remote_addr = LiveQp::kIova + slot.remote_addr % LiveQp::kBytes;
      for (shm::WorkSge& sge : slot.sges) {
        sge.lkey = own.mr->lkey();
        sge.addr = LiveQp::kIova + sge.addr % LiveQp::kBytes;
        sge.length_bytes %= 4096;
      }
      slot.ah_handle = 1;
      slot.remote_qpn = peer.qp->qpn();
      slot.remote_qkey = LiveQp::kQkey;
      slot.extra_slots = 0;
      slot.num_sge %= 5;
    }
    const bool receive = !to_srq && (how & 2) != 0;
    const Shared& ring = to_srq ? srq_ring : receive ? pair.receives : pair.sends;
    auto* const header = reinterpret_cast<shm::WorkQueueHeader*>(ring.data());
    const uint32_t tail = header->tail.load(std::memory_order_relaxed);
    std::memcpy(ring.data() + sizeof(*header) + tail % kSlots * sizeof(slot),
                static_cast<const void*>(&slot), sizeof(slot));
    header->tail.store(tail + 1, std::memory_order_release);
    if ((how & 4) == 0) (void)shm::RingDoorbell(*control(), which);
  }

  const Shared& Region(uint32_t which) const {
    if (which == 0) return control_memory;
    if (which == 1) return cq_ring;
    if (which == 2) return srq_ring;
    const Pair& pair = pairs[which / 2 % kQps];
    return which % 2 == 0 ? pair.sends : pair.receives;
  }
  // As a client does that has polled everything.
  void Poll() const {
    auto* const header = reinterpret_cast<shm::CqHeader*>(cq_ring.data());
    header->head.store(header->tail.load());
  }

  Host& host;
  UniqueFd wake_fd;  // the client's end; nobody sleeps here
  Shared control_memory{sizeof(shm::ControlSegment)};
  Shared cq_ring{shm::CqBytes(kCqes)};
  Shared srq_ring{shm::WorkQueueBytes(kSlots)};
  LiveMemory memory{host.path->transport};  // the SRQ's
  std::unique_ptr<engine::SessionPort> session;
  std::unique_ptr<engine::CqPort> cq_port;
  std::unique_ptr<soft::SoftSrq> srq;
  std::unique_ptr<engine::SrqPort> srq_port;
  Pair pairs[kQps];
  std::unique_ptr<soft::SoftAh> ah;
  std::unique_ptr<engine::AhPort> ah_port;
};

}  // namespace

void FuzzEngine(std::span<const uint8_t> bytes) {
  static Host host;
  Input input(bytes);
  Session session(host);
  // More than that is the same again, and slow.
  for (int records = 0; records < 150 && !input.empty(); ++records) {
    const auto kind = input.Take<uint8_t>();
    const auto what = input.Take<uint8_t>();
    const auto length = input.Take<uint16_t>();
    const uint32_t which = kind / 8 % (Session::kQps + 1);
    switch (kind % 8) {
      case 0:
      case 1:
        session.Post(which, what, input.TakeBytes(length % 256));
        break;
      case 2:
        // Anywhere; with the top bit of `what` near the beginning, where the indices are.
        session.Region(kind / 8).Scribble((what & 128) != 0 ? what % 128 : length * 4u,
                                          input.TakeBytes(1 + what % 16));
        break;
      case 3:
        (void)shm::RingDoorbell(*session.control(), what % 8);
        break;
      case 4:
        session.Poll();
        break;
      case 5:
        session.Move(which % Session::kQps, static_cast<QpState>(what % 7));
        break;
      case 6:
        session.Connect(which % Session::kQps);
        break;
      case 7:
        host.now += int64_t{length} << (what % 16);
        break;
    }
    host.Turn();
  }
  for (int turn = 0; turn < 20; ++turn) host.Turn();
}

}  // namespace rdmad::fuzz
