// An engine with clients for tests: each client object has both of its ends, the port at the engine
// and the reader or writer that an application would use. Rings are heap memory, the device is
// fake.
//
// Without Start() the engine runs in the test's own thread, whenever the bed waits for an answer,
// and time is a number that grows by one per turn. With Start() it has its thread and real time.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/sdk/ring/cq_reader.h"
#include "client/sdk/ring/doorbell_ringer.h"
#include "client/sdk/ring/work_queue_writer.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/engine_proxy.h"
#include "daemon/memory/queue_layout.h"
#include "proto/shm/completion_queue.h"
#include "proto/shm/doorbell.h"
#include "proto/shm/event.h"
#include "tests/support/fake_device.h"

namespace rdmad::engine {

// Zeroed memory as an arena would give it.
class RingMemory {
 public:
  explicit RingMemory(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{128}))) {
    std::memset(data_, 0, bytes);
  }
  ~RingMemory() { ::operator delete[](data_, std::align_val_t{128}); }
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  std::byte* const data_;
};

struct Pipe {
  Pipe() {
    int fds[2];
    RD_CHECK(::pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
    read_end.Reset(fds[0]);
    write_end.Reset(fds[1]);
  }
  UniqueFd read_end;
  UniqueFd write_end;
};

// Remembers what control was told.
class RecordingSink final : public EngineEventSink {
 public:
  void OnQpAsyncEvent(const device::AsyncEvent& event) override { async.push_back(event); }
  void OnSessionCorrupt(uint64_t session_token, const char* what) override {
    corrupt.emplace_back(session_token, what);
  }
  void OnCqOverrun(uint64_t cq_token) override { overruns.push_back(cq_token); }

  std::vector<device::AsyncEvent> async;
  std::vector<std::pair<uint64_t, std::string>> corrupt;
  std::vector<uint64_t> overruns;
};

class EngineBed {
 public:
  explicit EngineBed(const EngineOptions& options = {}) {
    ::signal(SIGPIPE, SIG_IGN);  // as main does; an engine's own thread blocks it
    engine_ = Engine::Create(options).value();
    engine_->AddDataPath(&path);
    proxy().SetEventSink(&sink);
  }

  Engine& engine() { return *engine_; }
  EngineProxy& proxy() { return engine_->proxy(); }

  void Start() {
    engine_->Start();
    started_ = true;
  }
  void Stop() {
    engine_->Stop();
    started_ = false;
  }

  // One turn, and what control hears of it.
  int Turn() {
    const int work = engine_->DoWork(++now);
    proxy().Poll();
    return work;
  }
  // Turns until one has nothing to do.
  void Settle() {
    while (Turn() != 0) {
    }
  }

  void Activate(device::EngineObject& object) {
    bool done = false;
    proxy().Activate(object, [&done] { done = true; });
    Await(done);
  }
  void Deactivate(device::EngineObject& object) {
    bool done = false;
    proxy().Deactivate(object, [&done] { done = true; });
    Await(done);
  }
  device::QpResult Modify(device::Qp& qp, device::QpState state) {
    std::optional<device::QpResult> result;
    device::QpAttr attr;
    attr.mask = device::kQpAttrState;
    attr.state = state;
    bool done = false;
    proxy().ModifyQp(qp, attr, [&](device::QpResult r) {
      result = r;
      done = true;
    });
    Await(done);
    return *result;
  }

  // Until `done` is set by a callback.
  void Await(const bool& done) {
    while (!done) {
      if (!started_) {
        Turn();
        continue;
      }
      pollfd ready{proxy().poll_fd(), POLLIN, 0};
      RD_CHECK(::poll(&ready, 1, 10000) == 1, "the engine answers");
      proxy().Poll();
    }
  }

  testing::FakeDataPath path;
  testing::FakeDevice device{&path};
  RecordingSink sink;
  device::TimeNs now = 0;

 private:
  std::unique_ptr<Engine> engine_;
  bool started_ = false;
};

class TestSession {
 public:
  explicit TestSession(EngineBed& bed, uint64_t token = 1)
      : control_memory(sizeof(shm::ControlSegment)),
        control(reinterpret_cast<shm::ControlSegment*>(control_memory.data())),
        bed_(bed) {
    page_ = ::mmap(nullptr, bed.proxy().engine_page_bytes(), PROT_READ, MAP_SHARED,
                   bed.proxy().engine_page_fd(), 0);
    RD_CHECK(page_ != MAP_FAILED);
    SessionPortInit init;
    init.control = control;
    init.wake_fd = std::move(wake.read_end);
    init.session_token = token;
    port = bed.proxy().CreateSessionPort(std::move(init));
    bed.Activate(*port);
  }
  ~TestSession() {
    bed_.Deactivate(*port);
    ::munmap(page_, bed_.proxy().engine_page_bytes());
  }
  TestSession(const TestSession&) = delete;
  TestSession& operator=(const TestSession&) = delete;

  const shm::EnginePage& page() const { return *static_cast<const shm::EnginePage*>(page_); }
  sdk::DoorbellRinger ringer() {
    return {control, static_cast<const shm::EnginePage*>(page_), wake.write_end.get()};
  }

  RingMemory control_memory;
  shm::ControlSegment* const control;
  Pipe wake;
  std::unique_ptr<SessionPort> port;

 private:
  EngineBed& bed_;
  void* page_ = nullptr;
};

class TestChannel {
 public:
  TestChannel(EngineBed& bed, TestSession& session) : bed_(bed) {
    ChannelPortInit init;
    init.session = session.port.get();
    init.write_fd = std::move(pipe.write_end);
    port = bed.proxy().CreateChannelPort(std::move(init));
    bed.Activate(*port);
  }
  ~TestChannel() { bed_.Deactivate(*port); }
  TestChannel(const TestChannel&) = delete;
  TestChannel& operator=(const TestChannel&) = delete;

  // The handles of all events in the pipe.
  std::vector<uint64_t> ReadAll() {
    std::vector<uint64_t> handles;
    shm::CompletionEvent event;
    while (::read(pipe.read_end.get(), &event, sizeof(event)) == sizeof(event)) {
      handles.push_back(event.cq_handle);
    }
    return handles;
  }

  Pipe pipe;
  std::unique_ptr<ChannelPort> port;

 private:
  EngineBed& bed_;
};

class TestCq {
 public:
  TestCq(EngineBed& bed, TestSession& session, uint32_t capacity, TestChannel* channel = nullptr,
         uint64_t handle = 100)
      : memory(shm::CqBytes(capacity)),
        header(reinterpret_cast<shm::CqHeader*>(memory.data())),
        reader(header, capacity),
        bed_(bed) {
    CqPortInit init;
    init.session = session.port.get();
    init.channel = channel == nullptr ? nullptr : channel->port.get();
    init.ring = memory.data();
    init.capacity = capacity;
    init.cq_handle = init.cq_token = handle;
    port = bed.proxy().CreateCqPort(init);
    bed.Activate(*port);
    cq = bed.device.CreateCq(capacity, port.get()).value();
    bed.Activate(*cq);
  }
  ~TestCq() {
    bed_.Deactivate(*cq);
    bed_.Deactivate(*port);
  }
  TestCq(const TestCq&) = delete;
  TestCq& operator=(const TestCq&) = delete;

  std::vector<shm::Cqe> PollAll() {
    std::vector<shm::Cqe> all;
    shm::Cqe cqe;
    while (reader.Poll(std::span(&cqe, 1)) == 1) all.push_back(cqe);
    return all;
  }

  RingMemory memory;
  shm::CqHeader* const header;
  sdk::CqReader reader;
  std::unique_ptr<CqPort> port;
  std::unique_ptr<device::Cq> cq;

 private:
  EngineBed& bed_;
};

struct TestQpOptions {
  uint32_t depth = 16;
  uint32_t max_sge = shm::kMaxSge;
  uint32_t max_inline_bytes = shm::kMaxInlineBytes;
  uint32_t doorbell_index = 0;
  uint64_t owner_token = 7;
  const device::Pd* pd = nullptr;
  device::QpState state = device::QpState::kRts;
  bool activate_port = true;  // false: the test calls bed.Activate(*qp.port)
};

class TestQp {
 public:
  TestQp(EngineBed& bed, TestSession& session, TestCq& cq, const TestQpOptions& options = {})
      : options_(options),
        send_slots(
            memory::WorkQueueSlots(options.depth, options.max_sge, options.max_inline_bytes)),
        recv_slots(memory::WorkQueueSlots(options.depth, options.max_sge, 0)),
        send_memory(shm::WorkQueueBytes(send_slots)),
        recv_memory(shm::WorkQueueBytes(recv_slots)),
        send_header(reinterpret_cast<shm::WorkQueueHeader*>(send_memory.data())),
        recv_header(reinterpret_cast<shm::WorkQueueHeader*>(recv_memory.data())),
        sends(send_header, send_slots, {options.depth, options.max_sge, options.max_inline_bytes}),
        recvs(recv_header, recv_slots, {options.depth, options.max_sge, 0}),
        ringer(session.ringer()),
        bed_(bed) {
    device::QpInit init;
    init.send_cq = init.recv_cq = cq.cq.get();
    init.cap = {options.depth, options.depth, options.max_sge, options.max_sge,
                options.max_inline_bytes};
    init.owner_token = options.owner_token;
    testing::FakePd pd;
    qp_owner_ = bed.device.CreateQp(pd, init).value();
    qp = static_cast<testing::FakeQp*>(qp_owner_.get());
    qp->state = options.state;
    qp->peer = qp;
    QueuePairPortInit port_init;
    port_init.session = session.port.get();
    port_init.qp = qp;
    port_init.pd = options.pd;
    port_init.send_cq = port_init.recv_cq = cq.port.get();
    port_init.send_ring = {send_memory.data(), send_slots};
    port_init.recv_ring = {recv_memory.data(), recv_slots};
    port_init.doorbell_index = options.doorbell_index;
    port_init.owner_token = options.owner_token;
    port = bed.proxy().CreateQueuePairPort(port_init);
    bed.Activate(*qp);
    if (options.activate_port) bed.Activate(*port);
  }
  ~TestQp() { Close(); }
  TestQp(const TestQp&) = delete;
  TestQp& operator=(const TestQp&) = delete;

  // Takes the QP from the engine and destroys it; the rings stay.
  void Close() {
    if (port == nullptr) return;
    bed_.Deactivate(*port);
    bed_.Deactivate(*qp);
    port.reset();
    qp_owner_.reset();
    qp = nullptr;
  }

  // A signaled send of nothing.
  int Send(uint64_t wr_id, uint8_t flags = shm::kWorkSignaled) {
    sdk::SendRequest request;
    request.wr_id = wr_id;
    request.flags = flags;
    return sends.PostSend(request);
  }
  int Recv(uint64_t wr_id) { return recvs.PostRecv(wr_id, {}); }
  void Ring() {
    sends.Publish();
    recvs.Publish();
    ringer.Ring(options_.doorbell_index);
  }
  // The slot that the next post will use: for writing nonsense into it.
  shm::WorkSlot& SendSlot(uint32_t index) {
    return reinterpret_cast<shm::WorkSlot*>(send_header + 1)[index % send_slots];
  }

 private:
  const TestQpOptions options_;

 public:
  const uint32_t send_slots;
  const uint32_t recv_slots;
  RingMemory send_memory;
  RingMemory recv_memory;
  shm::WorkQueueHeader* const send_header;
  shm::WorkQueueHeader* const recv_header;
  sdk::WorkQueueWriter sends;
  sdk::WorkQueueWriter recvs;
  const sdk::DoorbellRinger ringer;
  testing::FakeQp* qp = nullptr;
  std::unique_ptr<QueuePairPort> port;

 private:
  EngineBed& bed_;
  std::unique_ptr<device::Qp> qp_owner_;
};

inline std::vector<uint64_t> WrIds(const std::vector<shm::Cqe>& cqes) {
  std::vector<uint64_t> ids;
  for (const shm::Cqe& cqe : cqes) ids.push_back(cqe.wr_id);
  return ids;
}

inline std::vector<device::WcStatus> Statuses(const std::vector<shm::Cqe>& cqes) {
  std::vector<device::WcStatus> statuses;
  for (const shm::Cqe& cqe : cqes) statuses.push_back(static_cast<device::WcStatus>(cqe.status));
  return statuses;
}

}  // namespace rdmad::engine
