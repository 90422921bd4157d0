#include "daemon/control/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace rdmad::control {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Fields 22 (start time in ticks since boot), 23 (virtual bytes) and 24 (resident pages) of
// /proc/self/stat.
void ReadStat(ProcessStats* stats) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // The second field is the name in parentheses and may hold anything.
  const size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return;
  std::istringstream fields(text.substr(end_of_name + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  uint64_t start_ticks = 0;
  uint64_t resident_pages = 0;
  if (!(fields >> start_ticks >> stats->virtual_bytes >> resident_pages)) return;
  stats->resident_bytes = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  timespec since_boot{};
  timespec since_1970{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  clock_gettime(CLOCK_REALTIME, &since_1970);
  const double boot =
      static_cast<double>(since_1970.tv_sec) - static_cast<double>(since_boot.tv_sec);
  stats->start_time_seconds =
      boot + static_cast<double>(start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint64_t CountOpenFds() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  uint64_t count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(directory);
  return count - 1;  // without the directory itself
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  stats.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) stats.max_fds = files.rlim_cur;
  stats.open_fds = CountOpenFds();
  ReadStat(&stats);
  return stats;
}

}  // namespace rdmad::control
