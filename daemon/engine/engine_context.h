// What an engine's ports share with it: the lists that they stand in and the means that they use.
//
// Thread: engine. Owner: Engine; outlives all ports.
#pragma once

#include "daemon/engine/event_outbox.h"
#include "daemon/engine/intrusive_list.h"
#include "daemon/engine/intrusive_table.h"
#include "daemon/engine/relaxed_counter.h"
#include "daemon/engine/wait_set.h"
#include "daemon/engine/work_queue_reader.h"
#include "daemon/engine/work_source.h"

namespace rdmad::engine {

class ShmCqPort;
class ShmQueuePairPort;
class ShmSessionPort;
struct OverrunTag;
struct QpTag;
struct SessionTag;

struct EngineContext {
  ActiveList active;                                    // rings with unread WRs
  IntrusiveList<ShmSessionPort, SessionTag> sessions;   // whose doorbells are looked at
  IntrusiveList<ShmCqPort, OverrunTag> overrun_cqs;     // whose QPs must go to the error state
  IntrusiveTable<ShmQueuePairPort, QpTag> ports_by_qp;  // keyed by the device::Qp's address
  EventOutbox events;
  WaitSet waits;
  WrScratch scratch;
  uint32_t blocked_channels = 0;  // completion channels that wait for room in their pipe
  RelaxedCounter work_requests;
  RelaxedCounter completions;
};

}  // namespace rdmad::engine
