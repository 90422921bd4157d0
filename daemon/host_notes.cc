#include "daemon/host_notes.h"

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "daemon/device/verbs/memlock.h"
#include "daemon/device/verbs/verbs_devices.h"

namespace rdmad {
namespace {

// Each session takes some twenty: fewer than these serve some hundred applications.
constexpr rlim_t kFewFiles = 4096;

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
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < kFewFiles) {
    notes.push_back("open files: at most " + std::to_string(files.rlim_max) +
                    "; sessions and connections take some each. Raise LimitNOFILE= of the unit, or "
                    "`ulimit -Hn`, to 65536");
  }
  if (!HasHugePages()) {
    notes.emplace_back(
        "huge pages: none reserved (vm.nr_hugepages=0); pools that would like them get 4 KiB "
        "pages, pools that require them fail. Reserve some with `sysctl vm.nr_hugepages=N`");
  }
  return notes;
}

}  // namespace rdmad
