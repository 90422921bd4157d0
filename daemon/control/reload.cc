#include "daemon/control/reload.h"

namespace rdmad::control {

Config LiveMerge(const Config& running, const Config& wanted) {
  Config merged = running;
  merged.log = wanted.log;
  merged.policy = wanted.policy;
  merged.limits = wanted.limits;
  merged.limits.max_total_pool_bytes = running.limits.max_total_pool_bytes;
  merged.session = wanted.session;
  merged.user = wanted.user;
  return merged;
}

std::vector<std::string> NeedsRestart(const Config& running, const Config& wanted) {
  std::vector<std::string> keys;
  if (running.run_dir != wanted.run_dir) keys.emplace_back("run_dir");
  if (running.metrics != wanted.metrics) keys.emplace_back("metrics.address");
  if (running.soft != wanted.soft) keys.emplace_back("[soft]");
  if (running.verbs != wanted.verbs) keys.emplace_back("[verbs]");
  if (running.engine != wanted.engine) keys.emplace_back("[engine]");
  if (running.limits.max_total_pool_bytes != wanted.limits.max_total_pool_bytes) {
    keys.emplace_back("limits.max_total_pool_bytes");
  }
  return keys;
}

}  // namespace rdmad::control
