// The part of a captured session (capture_test) that is about more than one RC connection: queue
// pairs wired by hand, datagram ids, an answer that comes late.
#pragma once

#include <string>

#include "rdmad/rdmad.h"

namespace rdmad::testing {

// Atomics, sends that invalidate, and every operation of UC in every size from which something
// follows for the packets; `here` and `there` are addresses of the devices. Failures are fatal.
void RunWiredOperations(const Client& from, const Client& to, const std::string& here,
                        const std::string& there);
// The questions and answers of the UDP port space.
void RunDatagramIds(const Client& from, const Client& to, const std::string& there);
// A connection that is accepted so late that the request is repeated, and the peer asked to wait.
void RunLateAnswer(const Client& from, const Client& to, const std::string& there);

}  // namespace rdmad::testing
