#include "tests/support/child_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/file.h"
#include "tests/support/temp_dir.h"

extern char** environ;

namespace rdmad::testing {
namespace {

// "NAME=" of "NAME=value".
std::string NameOf(const std::string& setting) {
  return setting.substr(0, setting.find('=') + 1);
}

std::vector<std::string> Environment(const std::vector<std::string>& settings) {
  std::vector<std::string> all = settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = NameOf(*entry);
    if (std::none_of(settings.begin(), settings.end(),
                     [&](const std::string& setting) { return NameOf(setting) == name; })) {
      all.emplace_back(*entry);
    }
  }
  return all;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  for (const char* folder : {"/usr/local/bin/", "/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/"}) {
    if (::access((folder + name).c_str(), X_OK) == 0) return folder + name;
  }
  return name;
}

// Everything that the child needs, prepared before the fork: behind it only async-signal-safe calls
// are allowed, since this process has other threads.
struct Launch {
  const char* program;
  char* const* argv;
  char* const* env;
  int output;
  int network;
  uid_t uid;
  rlim_t max_file_bytes;
  pid_t parent;
};

// In the child. Returns only if something failed.
void BecomeProgram(const Launch& launch) noexcept {
  if (launch.network >= 0 && ::setns(launch.network, CLONE_NEWNET) != 0) return;
  if (launch.output >= 0) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (::dup2(null, 0) < 0 || ::dup2(launch.output, 1) < 0 || ::dup2(launch.output, 2) < 0) return;
  }
  if (launch.max_file_bytes != 0) {
    const rlimit limit{launch.max_file_bytes, launch.max_file_bytes};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return;
  }
  if (launch.uid != 0) {
    if (::setgroups(0, nullptr) != 0 || ::setgid(launch.uid) != 0 || ::setuid(launch.uid) != 0) {
      return;
    }
  }
  // After setuid, which clears it.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (::getppid() != launch.parent) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(launch.program, launch.argv, launch.env);
}

ExitStatus FromWaitStatus(int status) {
  if (WIFSIGNALED(status)) return {128 + WTERMSIG(status), WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal);
  return absl::StrCat("exit code ", code);
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv,
                                                 const ProcessOptions& options) {
  UniqueFd output;
  if (!options.output_file.empty()) {
    output.Reset(
        ::open(options.output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!output) return absl::ErrnoToStatus(errno, absl::StrCat("open ", options.output_file));
  }
  // Says errno if the program does not come to life; closed by execve otherwise.
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  const UniqueFd read_end(report[0]);
  UniqueFd write_end(report[1]);

  const std::string program = FindProgram(argv.at(0));
  const std::vector<std::string> environment = Environment(options.environment);
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> env_pointers = Pointers(environment);
  const Launch launch{
      program.c_str(),    argv_pointers.data(), env_pointers.data(),    output.get(),
      options.network_fd, options.uid,          options.max_file_bytes, ::getpid()};

  ChildProcess child;
  child.pid_ = ::fork();
  if (child.pid_ < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child.pid_ == 0) {
    BecomeProgram(launch);
    const int error = errno;
    const ssize_t ignored = ::write(write_end.get(), &error, sizeof(error));
    ::_exit(ignored > 0 ? 127 : 126);
  }
  write_end.Reset();
  child.pid_fd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid_, 0)));
  if (!child.pid_fd_) return absl::ErrnoToStatus(errno, "pidfd_open");
  int error = 0;
  if (::read(read_end.get(), &error, sizeof(error)) == sizeof(error)) {
    return absl::ErrnoToStatus(error, absl::StrCat("start ", program));
  }
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  Destroy();
  pid_ = std::exchange(other.pid_, -1);
  pid_fd_ = std::move(other.pid_fd_);
  ended_ = std::exchange(other.ended_, std::nullopt);
  return *this;
}

void ChildProcess::Destroy() noexcept {
  if (pid_ > 0) Kill();
  pid_ = -1;
}

void ChildProcess::Signal(int signal) noexcept {
  if (pid_ > 0 && !ended_) ::kill(pid_, signal);
}

std::optional<ExitStatus> ChildProcess::Wait(absl::Duration timeout) {
  if (ended_ || pid_ <= 0) return ended_;
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const timespec wait = absl::ToTimespec(std::min(left, absl::Hours(1)));
    pollfd poll{pid_fd_.get(), POLLIN, 0};
    const int ready = ::ppoll(&poll, 1, &wait, nullptr);
    if (ready > 0) break;
    if (ready == 0 && absl::Now() >= deadline) return std::nullopt;
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  ended_ = FromWaitStatus(status);
  return ended_;
}

void ChildProcess::Kill() noexcept {
  Signal(SIGKILL);
  Wait(absl::InfiniteDuration());
}

absl::StatusOr<ProgramResult> RunProgram(const std::vector<std::string>& argv,
                                         const ProcessOptions& options, absl::Duration timeout) {
  const TempDir folder;
  ProcessOptions with_output = options;
  with_output.output_file = folder.path() + "/output";
  absl::StatusOr<ChildProcess> child = ChildProcess::Start(argv, with_output);
  if (!child.ok()) return child.status();
  const std::optional<ExitStatus> exit = child->Wait(timeout);
  std::string output = ReadFile(with_output.output_file);
  if (!exit) {
    return absl::DeadlineExceededError(absl::StrCat(argv.at(0), " still runs after ",
                                                    absl::FormatDuration(timeout),
                                                    "; its output so far:\n", output));
  }
  return ProgramResult{*exit, std::move(output)};
}

}  // namespace rdmad::testing
