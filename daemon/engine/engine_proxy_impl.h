// Control's end of an engine: numbers commands, keeps those that find the ring full, runs
// callbacks.
//
// At most as many commands are under way (sent and not answered) as the command ring has slots, so
// the event ring always has room for the answers. The others wait here in order and are counted;
// answers make room for them.
//
// Thread: control. Owner: Engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <variant>

#include "daemon/engine/engine_command.h"
#include "daemon/engine/engine_proxy.h"

namespace rdmad::engine {

class Engine;

class EngineProxyImpl final : public EngineProxy {
 public:
  explicit EngineProxyImpl(Engine& engine) : engine_(engine) {}

  std::unique_ptr<SessionPort> CreateSessionPort(SessionPortInit init) override;
  std::unique_ptr<ChannelPort> CreateChannelPort(ChannelPortInit init) override;
  std::unique_ptr<CqPort> CreateCqPort(const CqPortInit& init) override;
  std::unique_ptr<QueuePairPort> CreateQueuePairPort(const QueuePairPortInit& init) override;
  std::unique_ptr<SrqPort> CreateSrqPort(const SrqPortInit& init) override;
  std::unique_ptr<AhPort> CreateAhPort(const AhPortInit& init) override;

  void Activate(device::EngineObject& object, Done done) override;
  void Deactivate(device::EngineObject& object, Done done) override;
  void ModifyQp(device::Qp& qp, const device::QpAttr& attr, ModifyDone done) override;
  void QueryQp(device::Qp& qp, QueryDone done) override;
  void ShowQp(device::Qp& qp, QueryDone done) override;
  void SetSrqLimit(device::Srq& srq, uint32_t limit, ModifyDone done) override;
  void QuerySrqLimit(device::Srq& srq, LimitDone done) override;

  uint32_t index() const noexcept override;
  EngineStats Stats() const noexcept override;
  int engine_page_fd() const noexcept override;
  uint64_t engine_page_bytes() const noexcept override;
  int poll_fd() const noexcept override;
  void Poll() override;
  void SetEventSink(EngineEventSink* sink) noexcept override { sink_ = sink; }

 private:
  using Callback = std::variant<Done, ModifyDone, QueryDone, LimitDone>;

  void Send(EngineCommand command, Callback callback);
  // Moves waiting commands into the ring as far as they fit, and wakes the engine if it sleeps.
  void Pump();
  void RingEngine();
  void Handle(const EngineEvent& event);
  void HandleAnswer(const EngineEvent& event);

  Engine& engine_;
  EngineEventSink* sink_ = nullptr;
  std::deque<Callback> callbacks_;     // of every command that is not answered, in order
  std::deque<EngineCommand> waiting_;  // the newest of these, not sent yet
  uint64_t next_number_ = 0;           // of the next command
  uint64_t next_answer_ = 0;           // number of callbacks_.front()
  uint32_t under_way_ = 0;             // sent and not answered
  std::atomic<uint64_t> delayed_{0};   // commands that had to wait here; any thread reads
};

}  // namespace rdmad::engine
