// How much memory could still be taken before the OOM killer comes: by the whole machine, and by
// this process's cgroup and the ones above it (v2, or v1's memory controller).
//
// An estimate, taken because memfds have no limit of their own: a client that asks for a terabyte
// must get an answer, not the daemon's end.
#pragma once

#include <cstdint>
#include <string>

namespace rdmad::memory {

struct MemoryRoom {
  uint64_t bytes = UINT64_MAX;
  std::string limit = "none";  // what limits it: "machine", or the cgroup's folder
};

// `root`: where proc and sys are found; tests give a folder of their own. What cannot be read does
// not limit. Thread: any. Costs some 50 us.
MemoryRoom AvailableMemory(const std::string& root = "");

}  // namespace rdmad::memory
