#include "daemon/device/soft/cm/cm_counters.h"

namespace rdmad::soft {

std::vector<device::CounterValue> Describe(const CmCounters& c) {
  return {
      {"mads_received", "messages", "CM messages taken from the wire", c.mads_received},
      {"mads_sent", "messages", "CM messages sent to the wire", c.mads_sent},
      {"mads_local", "messages", "CM messages between peers in this daemon", c.mads_local},
      {"mads_malformed", "messages", "CM messages dropped: not well-formed", c.mads_malformed},
      {"mads_unmatched", "messages", "CM messages that belong to no connection", c.mads_unmatched},
      {"send_failures", "messages", "CM messages that the socket did not take", c.send_failures},
      {"retries", "messages", "CM messages sent again for want of an answer", c.retries},
      {"repetitions", "messages", "Connection requests that came more than once", c.repetitions},
      {"requests", "requests", "Connection requests handed to a listener", c.requests},
      {"requests_refused", "requests", "Connection requests answered with REJ unasked",
       c.requests_refused},
      {"requests_over_backlog", "requests", "Connection requests dropped: backlog full",
       c.requests_over_backlog},
      {"requests_over_limit", "requests",
       "Connection requests dropped: too many connections or pending requests",
       c.requests_over_limit},
      {"established", "connections", "Connections that were established", c.established},
      {"established_by_data", "connections",
       "Connections that the peer's first data established, since its RTU was late or lost",
       c.established_by_data},
      {"timeouts", "connections", "Connections given up: no answer from the peer", c.timeouts},
      {"stale", "connections", "Connections ended: their remote QP has a new connection", c.stale},
  };
}

}  // namespace rdmad::soft
