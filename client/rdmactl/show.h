// The commands that ask the daemon and print the answer: status, devices, sessions, connections, pools, version.
#pragma once

#include "absl/status/status.h"
#include "rdmad/client.h"

namespace rdmad::rdmactl {

// A table for people, or with `json` the daemon's message as JSON, on stdout.
absl::Status ShowStatus(const Client& client, bool json);
absl::Status ShowDevices(const Client& client, bool json);
absl::Status ShowSessions(const Client& client, bool json);
absl::Status ShowConnections(const Client& client, bool json);
absl::Status ShowPools(const Client& client, bool json);
// Works without a daemon, too: then only the version of this program is known.
absl::Status ShowVersion(const AttachOptions& options, bool json);

}  // namespace rdmad::rdmactl
