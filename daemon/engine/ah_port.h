// An address handle at an engine: while it is active, posts of its session find it by its number.
//
// A WR that the engine has not taken when the handle goes finds it gone, and fails: as in verbs, an
// application keeps an address handle until the sends that name it have completed.
#pragma once

#include "daemon/engine/ah_table.h"
#include "daemon/engine/port.h"
#include "daemon/engine/session_port.h"

namespace rdmad::engine {

class ShmAhPort final : public AhPort {
 public:
  explicit ShmAhPort(const AhPortInit& init)
      : table_(static_cast<ShmSessionPort*>(init.session)->ahs()),
        slot_handle_(init.slot_handle),
        entry_{init.ah, init.pd} {
    table_.Reserve(slot_handle_);
  }

  void Activate(device::TimeNs) noexcept override { table_.Insert(slot_handle_, entry_); }
  void Deactivate(device::TimeNs) noexcept override { table_.Remove(slot_handle_); }

 private:
  AhTable& table_;
  const uint32_t slot_handle_;
  const AhTable::Entry entry_;
};

}  // namespace rdmad::engine
