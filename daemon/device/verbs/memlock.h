// Whether this process may lock as much memory as verbs devices need.
//
// Registered memory and queues are pinned and count against RLIMIT_MEMLOCK unless the process has
// CAP_IPC_LOCK. It is the most frequent reason why RDMA programs fail. Source: getrlimit(2),
// capabilities(7).
#pragma once

#include <string>

namespace rdmad::verbs {

// Empty if there is no limit; else one line that says what the limit is and what to do. Thread:
// any.
std::string MemlockAdvice();

}  // namespace rdmad::verbs
