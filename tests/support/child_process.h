// Programs that a test starts: one that runs on beside it (ChildProcess) or one that it waits for
// (RunProgram).
//
// None outlives the test: a child is killed when its object goes, and by the kernel
// (PR_SET_PDEATHSIG) when the thread that started it ends, however that happens. So start those
// that are to last from the main thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/unique_fd.h"

namespace rdmad::testing {

struct ProcessOptions {
  // "NAME=value"; added to this process's environment, or replacing.
  std::vector<std::string> environment = {};
  // Where stdout and stderr are appended. Empty: this process's own.
  std::string output_file = "";
  // The network namespace to run in, see net_namespace.h. -1: this process's.
  int network_fd = -1;
  // The user to run as; only root may choose. 0: this process's.
  uid_t uid = 0;
  // Bounds the size of files that it writes (RLIMIT_FSIZE); 0: no bound.
  size_t max_file_bytes = 0;
};

// How a process ended.
struct ExitStatus {
  int code = 0;    // of exit(), or 128 + signal
  int signal = 0;  // 0 if it ended by itself

  [[nodiscard]] bool ok() const noexcept { return code == 0; }
  // "exit code 3", "signal 9".
  [[nodiscard]] std::string ToString() const;
};

// Thread: one at a time.
class ChildProcess {
 public:
  // Starts argv[0], a path, or a name that is looked up in PATH.
  // Errors: those of fork, open and execve, with the program's name.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& argv,
                                            const ProcessOptions& options = {});

  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { Destroy(); }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  // Readable once it has ended (pidfd_open(2)).
  [[nodiscard]] int pid_fd() const noexcept { return pid_fd_.get(); }

  // Does nothing when it has ended.
  void Signal(int signal) noexcept;
  // nullopt: it still runs after `timeout`. May be called again.
  std::optional<ExitStatus> Wait(absl::Duration timeout);
  [[nodiscard]] bool IsRunning() { return !Wait(absl::ZeroDuration()).has_value(); }
  // SIGKILL, and waits for the end.
  void Kill() noexcept;

 private:
  ChildProcess() = default;
  void Destroy() noexcept;

  pid_t pid_ = -1;
  UniqueFd pid_fd_;
  std::optional<ExitStatus> ended_;
};

struct ProgramResult {
  ExitStatus exit;
  std::string output;  // stdout and stderr together

  [[nodiscard]] bool ok() const noexcept { return exit.ok(); }
};

// Runs a program to its end. Errors: as ChildProcess::Start; DeadlineExceeded (killed; with its
// output so far). `options.output_file` is ignored.
absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& argv,
                                         const ProcessOptions& options = {},
                                         absl::Duration timeout = absl::Seconds(60));

}  // namespace rdmad::testing
