#include "daemon/memory/memory_room.h"

#include <fstream>
#include <optional>
#include <sstream>

namespace rdmad::memory {
namespace {

// The number after `key` in a file of "key value" lines (a colon after the key is allowed).
std::optional<uint64_t> NumberInFile(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    uint64_t number = 0;
    if (words >> word >> number && (word == key || word == key + ":")) return number;
  }
  return std::nullopt;
}

// The only number of a file; nothing for "max".
std::optional<uint64_t> NumberOfFile(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat: page cache that goes first
};
constexpr CgroupFiles kV2 = {"/memory.max", "/memory.current", "inactive_file"};
constexpr CgroupFiles kV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                             "total_inactive_file"};

// Lowers `room` to what the cgroup `path` and its parents below `mount` allow.
void LimitByCgroups(const std::string& mount, std::string path, const CgroupFiles& files,
                    MemoryRoom& room) {
  while (true) {
    const std::string folder = mount + (path == "/" ? "" : path);
    const std::optional<uint64_t> limit = NumberOfFile(folder + files.limit);
    const std::optional<uint64_t> usage = NumberOfFile(folder + files.usage);
    if (limit && usage) {
      const uint64_t reclaimable =
          NumberInFile(folder + "/memory.stat", files.reclaimable).value_or(0);
      const uint64_t used = *usage > reclaimable ? *usage - reclaimable : 0;
      const uint64_t left = *limit > used ? *limit - used : 0;
      if (left < room.bytes) room = {left, folder};
    }
    if (path.empty() || path == "/") return;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

MemoryRoom AvailableMemory(const std::string& root) {
  MemoryRoom room;
  if (const auto kib = NumberInFile(root + "/proc/meminfo", "MemAvailable")) {
    room = {*kib * 1024, "machine"};
  }
  // Lines "hierarchy:controllers:path"; v2 is "0::path". A container sees its own cgroup as "/".
  std::ifstream cgroups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(cgroups, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/') continue;
    if (controllers.empty()) {
      LimitByCgroups(root + "/sys/fs/cgroup", path, kV2, room);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      LimitByCgroups(root + "/sys/fs/cgroup/memory", path, kV1, room);
    }
  }
  return room;
}

}  // namespace rdmad::memory
