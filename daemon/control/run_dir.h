// The run directory: the lock that makes one daemon its owner, and the listening sockets in it.
//
// Who holds `rdmad.lock` owns the directory; the lock goes with the process, however that ends.
// Under the lock a socket that nobody answers on is a leftover and is replaced; a socket that
// somebody answers on, and whatever is no socket, belongs to others and stays untouched. Everything
// is checked before anything is changed, so a daemon that may not start here leaves no trace.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::control {

inline constexpr char kAttachSocketName[] = "attach.sock";
inline constexpr char kRpcSocketName[] = "rdmad.sock";
inline constexpr char kLockFileName[] = "rdmad.lock";

// Whom this daemon serves. A *system* daemon (root, or an account below 1000 as services have)
// serves others: its sockets are open to everybody and policy.h decides by what the kernel says of
// the caller. A user's own daemon serves that user: its sockets have mode 0600, which the kernel
// enforces, and its policy admits only that user and root.
struct DaemonIdentity {
  uid_t uid = 0;
  bool system = true;

  static DaemonIdentity OfThisProcess();
};

// Where the environment points to; main reads it, nobody else does. Empty: not set.
struct RunDirEnvironment {
  std::string rdmad_run_dir;      // RDMAD_RUN_DIR
  std::string runtime_directory;  // RUNTIME_DIRECTORY: systemd's word for RuntimeDirectory=
  std::string xdg_runtime_dir;    // XDG_RUNTIME_DIR
};

// --run-dir, else RDMAD_RUN_DIR, else the configuration's run_dir, else RUNTIME_DIRECTORY, else
// /run/rdmad for root and $XDG_RUNTIME_DIR/rdmad for a user. InvalidArgument: not absolute, too
// long for a socket's path, or nothing is set.
absl::StatusOr<std::string> ChooseRunDir(const std::string& flag, const std::string& config,
                                         const RunDirEnvironment& environment,
                                         const DaemonIdentity& identity);

class RunDir {
 public:
  // Makes the directory (the last component only; 0755 for a system daemon, else 0700) and takes
  // the lock. Errors: AlreadyExists (another daemon, with its pid); FailedPrecondition (no
  // directory, somebody else's, or others may write into it); NotFound, PermissionDenied,
  // ResourceExhausted (disk full) as the system said.
  static absl::StatusOr<RunDir> Open(const std::string& path, const DaemonIdentity& identity);

  RunDir(RunDir&&) = default;
  RunDir& operator=(RunDir&&) = delete;
  ~RunDir();  // as RemoveSockets(); then the lock goes

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string PathOf(const char* name) const { return path_ + "/" + name; }

  // A listening, non-blocking socket named `name`; `type` is SOCK_STREAM or SOCK_SEQPACKET.
  // Errors: AlreadyExists (something that is not ours stands there; says what).
  absl::StatusOr<UniqueFd> Listen(const char* name, int type, int backlog);

  // Unlinks the sockets that Listen() made, if they are still the same. To be called while they are
  // open: a closed socket's inode number may be another's.
  void RemoveSockets() noexcept;

 private:
  struct OwnSocket {
    std::string name;
    dev_t device;
    ino_t inode;
  };

  RunDir(std::string path, bool system, UniqueFd directory, UniqueFd lock);
  absl::Status ClearWay(const char* name, int type);

  std::string path_;
  bool system_ = false;
  UniqueFd directory_;
  UniqueFd lock_;
  std::vector<OwnSocket> sockets_;
};

}  // namespace rdmad::control
