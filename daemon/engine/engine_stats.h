// The live form of EngineStats (engine_proxy.h): written by the engine, read by anyone.
#pragma once

#include "daemon/engine/relaxed_counter.h"

namespace rdmad::engine {

struct LiveEngineStats {
  RelaxedCounter turns;
  RelaxedCounter wakeups;
  RelaxedCounter busy_ns;
  RelaxedCounter events_delayed;
};

}  // namespace rdmad::engine
