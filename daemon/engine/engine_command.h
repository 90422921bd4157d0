// What control and an engine say to each other through their two rings.
#pragma once

#include <cstdint>

#include "daemon/device/device.h"

namespace rdmad::engine {

// Control to engine. Executed in order, each exactly once, each answered by one EngineEvent.
struct EngineCommand {
  enum class Kind : uint8_t { kActivate, kDeactivate, kModifyQp, kQueryQp, kKnownQp, kSetSrqLimit, kQuerySrqLimit };

  Kind kind = Kind::kActivate;
  uint64_t number = 0;                     // comes back in the answer
  device::EngineObject* object = nullptr;  // kActivate, kDeactivate
  device::Qp* qp = nullptr;                // kModifyQp, kQueryQp, kKnownQp
  device::QpAttr attr;                     // kModifyQp
  device::Srq* srq = nullptr;              // kSetSrqLimit, kQuerySrqLimit
  uint32_t limit = 0;                      // kSetSrqLimit
};

// Engine to control.
struct EngineEvent {
  enum class Kind : uint8_t { kAnswer, kQpAsync, kSessionCorrupt, kCqOverrun };

  Kind kind = Kind::kAnswer;
  device::QpResult result = device::QpResult::kOk;  // answer to kModifyQp, kSetSrqLimit
  uint64_t number = 0;                              // kAnswer
  uint64_t token = 0;                               // of the session or CQ
  const char* what = nullptr;                       // kSessionCorrupt; a literal
  device::QpAttr attr;                              // answer to kQueryQp, kKnownQp
  uint32_t limit = 0;                               // answer to kQuerySrqLimit
  device::AsyncEvent async{};                       // kQpAsync
};

}  // namespace rdmad::engine
