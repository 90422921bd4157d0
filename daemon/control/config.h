// The configuration of the daemon: a plain struct, read once from a TOML file, validated whole.
//
// config/rdmad.toml shows every key with its default and says what it does; a test holds the two
// together. Whoever needs a setting gets the narrow piece, never this whole struct. Changing live
// (SIGHUP): see reload.h.
//
// Thread: any. Owner: main, then Daemon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ip_address.h"
#include "daemon/base/socket_address.h"
#include "daemon/session/quota.h"
#include "daemon/session/user_quota.h"

namespace rdmad::control {

struct LogConfig {
  std::string level = "info";  // trace, debug, info, warn, error, off

  friend bool operator==(const LogConfig&, const LogConfig&) = default;
};

struct MetricsConfig {
  // Where Prometheus scrapes; none: no metrics ("off" in the file).
  std::optional<SocketAddress> address = SocketAddress{IpAddress::FromV4(127, 0, 0, 1), 9464};

  friend bool operator==(const MetricsConfig&, const MetricsConfig&) = default;
};

// The soft device: RoCEv2 over UDP sockets.
struct SoftConfig {
  bool enabled = true;
  // Exactly these; both empty: every interface that is up with all its addresses, and 127.0.0.1 and
  // ::1.
  std::vector<IpAddress> addresses;
  std::vector<std::string> interfaces;
  bool ecn = true;  // congestion is told by ECN marks and CNPs

  friend bool operator==(const SoftConfig&, const SoftConfig&) = default;
};

// Verbs devices: HCAs and the kernel's soft ones, by way of rdma-core.
struct VerbsConfig {
  bool enabled = true;
  std::vector<std::string> devices;  // exactly these ("mlx5_0"); empty: all there are

  friend bool operator==(const VerbsConfig&, const VerbsConfig&) = default;
};

struct EngineConfig {
  uint32_t count = 1;     // engines, each a thread
  uint32_t spin_us = 50;  // how long an engine without work keeps looking before it sleeps

  friend bool operator==(const EngineConfig&, const EngineConfig&) = default;
};

// Who may attach besides root and the daemon's own user. Unset lists: see policy.h.
struct PolicyConfig {
  std::optional<std::vector<std::string>> allow_users;   // names, numbers, or "*"
  std::optional<std::vector<std::string>> allow_groups;  // names or numbers

  friend bool operator==(const PolicyConfig&, const PolicyConfig&) = default;
};

// Bounds of the whole daemon.
struct DaemonLimits {
  uint32_t max_sessions = 4096;
  uint32_t max_sessions_per_user = 1024;
  uint64_t max_total_pool_bytes = 0;  // of all sessions together; 0: half of the host's memory

  friend bool operator==(const DaemonLimits&, const DaemonLimits&) = default;
};

struct Config {
  std::string run_dir;  // empty: chosen as run_dir.h says
  LogConfig log;
  MetricsConfig metrics;
  SoftConfig soft;
  VerbsConfig verbs;
  EngineConfig engine;
  PolicyConfig policy;
  DaemonLimits limits;
  session::SessionLimits session;
  session::SessionLimits user = session::DefaultUserLimits();

  friend bool operator==(const Config&, const Config&) = default;
};

// Reads and checks `path`. InvalidArgument holds every problem, one line each, as
// "path:line:column: what; what to do", also for users and groups that this host does not have;
// NotFound and PermissionDenied if the file cannot be read.
absl::StatusOr<Config> LoadConfig(const std::string& path);

// The same for text, which may have been written for another host; `name` stands where the path
// would.
absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& name);

// What is allowed and may not be what was meant, one line each.
std::vector<std::string> ConfigNotes(const Config& config);

// "trace", "debug", ...: the words that log.level takes.
bool IsLogLevel(const std::string& text);

}  // namespace rdmad::control
