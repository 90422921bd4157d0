#include "daemon/host_notes.h"

#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "daemon/device/verbs/memlock.h"
#include "daemon/device/verbs/verbs_devices.h"

namespace rdmad {
namespace {

bool HasHugePages() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("HugePages_Total:", 0) == 0) return std::stoull(line.substr(16)) != 0;
  }
  return false;
}

}  // namespace

std::vector<std::string> HostNotes(const control::Config& config) {
  std::vector<std::string> notes;
  if (config.verbs.enabled && verbs::HostHasDevices()) {
    if (std::string advice = verbs::MemlockAdvice(); !advice.empty()) {
      notes.push_back(std::move(advice));
    }
  }
  if (const unsigned processors = std::thread::hardware_concurrency();
      processors != 0 && config.engine.count > processors) {
    notes.push_back("engine.count = " + std::to_string(config.engine.count) +
                    ": this host has fewer processors, " + std::to_string(processors) +
                    "; engines will wait for each other");
  }
  if (!HasHugePages()) {
    notes.emplace_back(
        "huge pages: none reserved (vm.nr_hugepages=0); pools that would like them get 4 KiB "
        "pages, pools that require them fail. Reserve some with `sysctl vm.nr_hugepages=N`");
  }
  return notes;
}

}  // namespace rdmad
