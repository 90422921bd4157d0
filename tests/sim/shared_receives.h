// A shared receive queue in the simulation, with memory of its own, and the ends that draw on it.
//
// Each receive completes once, through some end, or is still in the queue at the end of the world;
// it leaves the queue in its order, so that one end's completions are in order, too. Only an end
// that is reset or destroyed while it has one may lose it. The limit event comes once per arming,
// when the queue is below the limit and not before.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/device/soft/soft_mr.h"
#include "daemon/device/soft/soft_srq.h"
#include "daemon/device/soft/transport.h"
#include "tests/sim/arena.h"
#include "tests/sim/random.h"
#include "tests/sim/records.h"
#include "tests/sim/verdict.h"

namespace rdmad::sim {

class SharedReceives {
 public:
  // `transport` and `async` are one host's. `terms`: of all connections whose ends draw on it.
  SharedReceives(soft::Transport& transport, device::AsyncSink* async, const Terms& terms,
                 Random& random, Verdict& verdict);
  ~SharedReceives();
  SharedReceives(const SharedReceives&) = delete;
  SharedReceives& operator=(const SharedReceives&) = delete;

  soft::SoftSrq* srq() const { return srq_.get(); }
  const soft::Transport& transport() const { return transport_; }
  const Terms& terms() const { return terms_; }
  Arena& arena() { return arena_; }

  void AddUser() { ++users_; }
  bool Post(TimeNs now);
  void Arm();
  void OnLimit();
  // An end completes receive `wr_id`, its last one before that was `*last` (kNone: none).
  static constexpr uint64_t kNone = UINT64_MAX;
  const RecvRecord* Complete(uint64_t wr_id, uint64_t* last);
  // Whatever is in its memory now.
  void Spoil(uint64_t wr_id) { arena_.Accept(receives_[wr_id].record.pieces); }
  // Its memory may be used again.
  void Return(uint64_t wr_id);
  // An end forgets: with it one receive may be lost.
  void MayLoseOne() { ++may_be_lost_; }
  // All ends are gone: what was not completed must still be there.
  void Close();

 private:
  enum class Fate : uint8_t { kPosted, kCompleted, kLeft };
  struct Receive {
    RecvRecord record;
    Fate fate = Fate::kPosted;
  };
  uint64_t open() const { return receives_.size() - completed_; }

  soft::Transport& transport_;
  const Terms terms_;
  const uint32_t depth_;
  Random& random_;
  Verdict& verdict_;
  Arena arena_;
  soft::SoftPd pd_;
  std::unique_ptr<soft::SoftMr> mr_;
  std::unique_ptr<soft::SoftSrq> srq_;
  std::vector<Receive> receives_;
  uint64_t completed_ = 0;
  uint64_t may_be_lost_ = 0;
  uint32_t users_ = 0;

  uint32_t limit_ = 0;       // armed, if not 0
  uint64_t armed_from_ = 0;  // receives from here on were posted after arming
};

}  // namespace rdmad::sim
