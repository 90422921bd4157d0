#include "daemon/device/verbs/hw_counters.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace rdmad::verbs {
namespace {

constexpr size_t kMaxCounters = 128;

// CounterValue has plain pointers, as most counters are literals; a device's names live on here.
const char* Keep(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

const char* UnitOf(const std::string& name) {
  if (name.ends_with("_data")) return "words";  // of four bytes, by the specification
  if (name.ends_with("_bytes")) return "bytes";
  if (name.ends_with("_packets") || name.ends_with("_pkts")) return "packets";
  return "events";
}

bool ReadNumber(const std::filesystem::path& file, uint64_t* value) {
  std::ifstream in(file);
  std::string text;
  if (!std::getline(in, text)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool IsMetricName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

std::vector<device::CounterValue> ReadHardwareCounters(const std::string& device_name,
                                                       uint32_t port,
                                                       const std::string& sysfs_root) {
  std::vector<device::CounterValue> counters;
  std::set<std::string> seen;
  for (const char* folder : {"hw_counters", "counters"}) {
    const std::filesystem::path path =
        std::filesystem::path(sysfs_root) / device_name / "ports" / std::to_string(port) / folder;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      uint64_t value = 0;
      // "lifespan" is how long the kernel keeps the values, and no counter.
      if (name == "lifespan" || !IsMetricName(name) || counters.size() == kMaxCounters ||
          !ReadNumber(entry->path(), &value) || !seen.insert(name).second) {
        continue;
      }
      counters.push_back({Keep(absl::StrCat("hw_", name)), UnitOf(name),
                          "a counter of the device's port, by the kernel's name", value});
    }
  }
  std::sort(counters.begin(), counters.end(),
            [](const auto& a, const auto& b) { return std::string_view(a.name) < b.name; });
  return counters;
}

}  // namespace rdmad::verbs
