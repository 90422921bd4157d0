#include "daemon/control/config.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/account.h"
#include "daemon/control/config_reader.h"
#include "daemon/device/max_engines.h"

namespace rdmad::control {
namespace {

constexpr std::array<const char*, 6> kLogLevels = {"trace", "debug", "info",
                                                   "warn",  "error", "off"};
constexpr uint64_t kMaxBytes = uint64_t{1} << 50;  // 1 PiB: more than any host, far from overflow
constexpr size_t kMaxFileBytes = 1 << 20;

std::string CheckLogLevel(const std::string& text) {
  if (IsLogLevel(text)) return "";
  return absl::StrCat("\"", text, "\" is no level; use trace, debug, info, warn, error or off");
}

// What is left of sockaddr_un::sun_path beside "/attach.sock" and its end.
constexpr size_t kMaxRunDirBytes = 95;

std::string CheckRunDir(const std::string& text) {
  if (!text.empty() && text.front() != '/') {
    return absl::StrCat("\"", text, "\" is not an absolute path; begin it with /");
  }
  if (text.size() > kMaxRunDirBytes) {
    return absl::StrCat("its ", text.size(), " bytes are too long; a socket's path allows ",
                        kMaxRunDirBytes);
  }
  return "";
}

std::string CheckMetricsAddress(const std::string& text) {
  if (text == "off" || SocketAddress::Parse(text).ok()) return "";
  return absl::StrCat(
      "\"", text,
      "\" is not an address with a port; write \"127.0.0.1:9464\", \"[::1]:9464\" or \"off\"");
}

std::string CheckSoftAddress(const std::string& text) {
  absl::StatusOr<IpAddress> address = IpAddress::Parse(text);
  if (!address.ok()) {
    return absl::StrCat("\"", text,
                        "\" is not an IP address of this host; write one such as \"127.0.0.2\"");
  }
  if (address->is_any() || address->is_multicast()) {
    return absl::StrCat("\"", text, "\" does not name one interface; write a single host address");
  }
  return "";
}

std::string CheckInterface(const std::string& text) {
  if (!text.empty() && text.size() < 16 && text.find('/') == std::string::npos) return "";
  return absl::StrCat("\"", text, "\" is no interface name; see `ip link`");
}

std::string CheckRdmaDevice(const std::string& text) {
  if (!text.empty() && text.size() < 64 && text.find('/') == std::string::npos) return "";
  return absl::StrCat("\"", text, "\" is no RDMA device's name; see `ibv_devices`");
}

std::string CheckUser(const std::string& text, bool look_up) {
  if (text.empty()) return "an empty name; write a name or a number";
  if (!look_up || text == "*" || FindUser(text)) return "";
  return absl::StrCat("there is no user \"", text, "\"; correct the name or use a number");
}

std::string CheckGroup(const std::string& text, bool look_up) {
  if (text.empty()) return "an empty name; write a name or a number";
  if (!look_up || FindGroup(text)) return "";
  return absl::StrCat("there is no group \"", text, "\"; correct the name or use a number");
}

void ReadMetrics(TableReader& root, MetricsConfig* out) {
  std::optional<TableReader> table = root.Table("metrics");
  if (!table) return;
  std::string text;
  table->Read("address", &text, CheckMetricsAddress);
  if (text == "off") {
    out->address.reset();
  } else if (!text.empty()) {
    out->address = SocketAddress::Parse(text).value();
  }
  table->Finish();
}

void ReadSoft(TableReader& root, SoftConfig* out) {
  std::optional<TableReader> table = root.Table("soft");
  if (!table) return;
  table->Read("enabled", &out->enabled);
  std::vector<std::string> addresses;
  table->ReadList("addresses", false, &addresses, CheckSoftAddress);
  for (const std::string& text : addresses)
    out->addresses.push_back(IpAddress::Parse(text).value());
  table->ReadList("interfaces", false, &out->interfaces, CheckInterface);
  table->Read("ecn", &out->ecn);
  if (!out->enabled && !(out->addresses.empty() && out->interfaces.empty())) {
    table->Complain(out->addresses.empty() ? "interfaces" : "addresses",
                    "soft.enabled = false contradicts this key; remove one of them");
  }
  table->Finish();
}

void ReadVerbs(TableReader& root, VerbsConfig* out) {
  std::optional<TableReader> table = root.Table("verbs");
  if (!table) return;
  table->Read("enabled", &out->enabled);
  table->ReadList("devices", false, &out->devices, CheckRdmaDevice);
  if (!out->enabled && !out->devices.empty()) {
    table->Complain("devices", "verbs.enabled = false contradicts this key; remove one of them");
  }
  table->Finish();
}

void ReadPolicy(TableReader& root, bool look_up, PolicyConfig* out) {
  std::optional<TableReader> table = root.Table("policy");
  if (!table) return;
  using Check = std::string (*)(const std::string&, bool);
  const auto read = [&table, look_up](const char* key, Check check,
                                      std::optional<std::vector<std::string>>* list) {
    const bool given = table->Has(key);
    std::vector<std::string> names;
    table->ReadList(key, true, &names,
                    [check, look_up](const std::string& text) { return check(text, look_up); });
    if (given) *list = std::move(names);
  };
  read("allow_users", CheckUser, &out->allow_users);
  read("allow_groups", CheckGroup, &out->allow_groups);
  table->Finish();
}

void ReadLimits(TableReader& root, DaemonLimits* daemon) {
  if (std::optional<TableReader> table = root.Table("limits")) {
    table->Read("max_sessions", 1, 1u << 20, &daemon->max_sessions);
    table->Read("max_sessions_per_user", 1, 1u << 20, &daemon->max_sessions_per_user);
    table->Read("max_total_pool_bytes", 0, kMaxBytes, &daemon->max_total_pool_bytes);
    if (daemon->max_sessions_per_user > daemon->max_sessions) {
      if (table->Has("max_sessions_per_user")) {
        table->Complain(
            "max_sessions_per_user",
            absl::StrCat("limits.max_sessions_per_user = ", daemon->max_sessions_per_user,
                         " is over limits.max_sessions = ", daemon->max_sessions, "; lower it"));
      } else {
        daemon->max_sessions_per_user = daemon->max_sessions;
      }
    }
    table->Finish();
  }
}

// What differs between a session's limits and a user's.
struct LimitBounds {
  uint64_t most_queues;  // QPs, and SRQs
  uint64_t least_pool_bytes;
};

void ReadObjectLimits(TableReader& root, const char* name, const LimitBounds& bounds,
                      session::SessionLimits* out) {
  std::optional<TableReader> table = root.Table(name);
  if (!table) return;
  constexpr uint64_t kMost = 1u << 20;
  table->Read("max_qps", 1, bounds.most_queues, &out->max_qps);
  table->Read("max_cqs", 1, kMost, &out->max_cqs);
  table->Read("max_pds", 1, kMost, &out->max_pds);
  table->Read("max_regions", 1, kMost, &out->max_regions);
  table->Read("max_pools", 1, kMost, &out->max_pools);
  table->Read("max_pool_bytes", bounds.least_pool_bytes, kMaxBytes, &out->max_pool_bytes);
  table->Read("max_region_bytes", 4096, kMaxBytes, &out->max_region_bytes);
  table->Read("max_cm_ids", 1, kMost, &out->max_cm_ids);
  table->Read("max_pending_requests", 1, kMost, &out->max_pending_requests);
  table->Read("max_channels", 1, kMost, &out->max_channels);
  table->Read("max_arena_bytes", 1 << 20, kMaxBytes, &out->max_arena_bytes);
  table->Read("max_srqs", 1, bounds.most_queues, &out->max_srqs);
  table->Read("max_ahs", 1, kMost, &out->max_ahs);  // engine::kMaxAhs
  table->Read("max_mws", 1, kMost, &out->max_mws);
  table->Read("max_multicasts", 1, kMost, &out->max_multicasts);
  table->Finish();
}

void ReadAll(const toml::table& tree, bool look_up, ConfigProblems* problems, Config* out) {
  TableReader root(tree, "", problems);
  root.Read("run_dir", &out->run_dir, CheckRunDir);
  if (std::optional<TableReader> table = root.Table("log")) {
    table->Read("level", &out->log.level, CheckLogLevel);
    table->Finish();
  }
  ReadMetrics(root, &out->metrics);
  ReadSoft(root, &out->soft);
  ReadVerbs(root, &out->verbs);
  if (std::optional<TableReader> table = root.Table("engine")) {
    table->Read("count", 1, device::kMaxEngines, &out->engine.count);
    table->Read("spin_us", 0, 1'000'000, &out->engine.spin_us);
    table->Finish();
  }
  ReadPolicy(root, look_up, &out->policy);
  ReadLimits(root, &out->limits);
  // In a session each queue has a doorbell: proto/shm/doorbell.h.
  ReadObjectLimits(root, "session_limits", {65535, 4096}, &out->session);
  ReadObjectLimits(root, "user_limits", {1u << 20, 0}, &out->user);
  root.Finish();
}

}  // namespace

bool IsLogLevel(const std::string& text) {
  for (const char* level : kLogLevels) {
    if (text == level) return true;
  }
  return false;
}

std::vector<std::string> ConfigNotes(const Config& config) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < session::kResourceCount; ++i) {
    const auto resource = static_cast<session::Resource>(i);
    const uint64_t of_session = session::LimitOf(config.session, resource);
    const uint64_t of_user = session::LimitOf(config.user, resource);
    if (of_user >= of_session || of_user == 0) continue;
    const char* name = session::LimitName(resource);
    notes.push_back(absl::StrCat("user_limits.", name, " = ", of_user, ": less than session_limits.",
                                 name, " = ", of_session,
                                 ", which no session reaches then but root's and rdmad's own user's"));
  }
  return notes;
}

namespace {

absl::StatusOr<Config> Parse(const std::string& text, const std::string& name, bool look_up) {
  ConfigProblems problems(name);
  Config config;
  try {
    const toml::table tree = toml::parse(text, name);
    ReadAll(tree, look_up, &problems, &config);
  } catch (const toml::parse_error& error) {
    // The file is not TOML; what stands behind the first mistake means nothing yet.
    problems.Add(error.source(), std::string(error.description()));
  }
  const std::vector<std::string> lines = problems.Lines();
  if (lines.empty()) return config;
  std::string all;
  for (const std::string& line : lines) absl::StrAppend(&all, all.empty() ? "" : "\n", line);
  return absl::InvalidArgumentError(all);
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& name) {
  return Parse(text, name, false);
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the configuration ", path));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read the configuration ", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":1:1: over 1 MiB; this is no configuration of rdmad"));
  }
  return Parse(text, path, true);
}

}  // namespace rdmad::control
