#include "daemon/device/soft/cm/cm_counters.h"

namespace rdmad::soft {

std::vector<device::CounterValue> Describe(const CmCounters& c) {
  return {
      {"cm_mads_received", "messages", "CM messages taken from the wire", c.mads_received},
      {"cm_mads_sent", "messages", "CM messages sent to the wire", c.mads_sent},
      {"cm_mads_local", "messages", "CM messages between peers in this daemon", c.mads_local},
      {"cm_mads_malformed", "messages", "CM messages dropped: not well-formed", c.mads_malformed},
      {"cm_mads_unmatched", "messages", "CM messages that belong to no connection",
       c.mads_unmatched},
      {"cm_send_failures", "messages", "CM messages that the socket did not take", c.send_failures},
      {"cm_retries", "messages", "CM messages sent again for want of an answer", c.retries},
      {"cm_repetitions", "messages", "Connection requests that came more than once", c.repetitions},
      {"cm_requests", "requests", "Connection requests handed to a listener", c.requests},
      {"cm_requests_refused", "requests", "Connection requests answered with REJ unasked",
       c.requests_refused},
      {"cm_requests_over_backlog", "requests", "Connection requests dropped: backlog full",
       c.requests_over_backlog},
      {"cm_requests_over_limit", "requests",
       "Connection requests dropped: too many connections or pending requests",
       c.requests_over_limit},
      {"cm_established", "connections", "Connections that were established", c.established},
      {"cm_established_by_data", "connections",
       "Connections that the peer's first data established, since its RTU was late or lost",
       c.established_by_data},
      {"cm_timeouts", "connections", "Connections given up: no answer from the peer", c.timeouts},
      {"cm_stale", "connections", "Connections ended: their remote QP has a new connection",
       c.stale},
  };
}

}  // namespace rdmad::soft
