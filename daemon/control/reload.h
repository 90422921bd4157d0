// What a changed configuration can change while the daemon runs.
//
// Live: log.level, [policy], [limits] but for max_total_pool_bytes, [session_limits] and
// [user_limits]; policy and limits hold for sessions that attach from now on, those of users at
// once. Everything else needs a restart.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "daemon/control/config.h"

namespace rdmad::control {

// `running` with the live keys of `wanted`.
Config LiveMerge(const Config& running, const Config& wanted);

// The keys that differ between the two and do not change live, as "metrics.address".
std::vector<std::string> NeedsRestart(const Config& running, const Config& wanted);

}  // namespace rdmad::control
