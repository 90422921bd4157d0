#include "tests/support/daemon_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/file.h"
#include "tests/support/net_namespace.h"
#include "tests/support/slow.h"

namespace rdmad::testing {
namespace {

constexpr int kLogLinesShown = 60;

std::string ListOf(const std::vector<std::string>& items) {
  if (items.empty()) return "[]\n";
  return absl::StrCat("[\"", absl::StrJoin(items, "\", \""), "\"]\n");
}

std::string MakeConfig(const DaemonOptions& options) {
  const std::string devices = options.verbs_devices.empty()
                                  ? absl::StrCat("[soft]\naddresses = ", ListOf(options.addresses),
                                                "interfaces = ", ListOf(options.interfaces))
                                  : absl::StrCat("[soft]\nenabled = false\n[verbs]\ndevices = ",
                                                 ListOf(options.verbs_devices));
  return absl::StrCat("[log]\nlevel = \"", options.log_level, "\"\n[metrics]\naddress = \"",
                      options.metrics, "\"\n", devices, options.more_config);
}

// A datagram socket on which the daemon says that it is ready. Source: sd_notify(3).
absl::StatusOr<UniqueFd> OpenNotifySocket(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ::unlink(path.c_str());
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, "bind " + path);
  }
  return fd;
}

bool SaysReady(int notify_fd) {
  std::array<char, 4096> text{};
  while (true) {
    const ssize_t bytes = ::recv(notify_fd, text.data(), text.size(), 0);
    if (bytes <= 0) return false;
    const std::string message(text.data(), static_cast<size_t>(bytes));
    if (("\n" + message + "\n").find("\nREADY=1\n") != std::string::npos) return true;
  }
}

// The number behind "Name:" in the text of /proc/PID/status.
uint64_t Field(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + ":");
  if (at == std::string::npos) return 0;
  return std::stoull(text.substr(at + name.size() + 1));
}

}  // namespace

absl::StatusOr<ProcessUse> ProcessUse::Of(pid_t pid) {
  const std::string proc = absl::StrCat("/proc/", pid);
  const std::string status = ReadFile(proc + "/status");
  if (status.empty()) return absl::NotFoundError(absl::StrCat("no process ", pid));
  ProcessUse use;
  use.rss_bytes = Field(status, "VmRSS") * 1024;
  use.shared_bytes = Field(status, "RssShmem") * 1024;
  use.threads = static_cast<int>(Field(status, "Threads"));
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd", error)) {
    (void)entry;
    ++use.descriptors;
  }
  for (const auto& task : std::filesystem::directory_iterator(proc + "/task", error)) {
    use.voluntary_switches += static_cast<int64_t>(
        Field(ReadFile(task.path().string() + "/status"), "voluntary_ctxt_switches"));
  }
  // Behind the name, which may contain anything: fields 14 and 15 are user and system time.
  const std::string stat = ReadFile(proc + "/stat");
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 2, stat.size())));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  use.cpu = absl::Seconds(1) * (user + system) / ::sysconf(_SC_CLK_TCK);
  return use;
}

DaemonProcess::DaemonProcess(DaemonOptions options)
    : options_(std::move(options)), run_dir_(folder_.path() + "/run") {}

DaemonProcess::~DaemonProcess() {
  if (child_) {
    const std::optional<ExitStatus> ended = child_->Wait(absl::ZeroDuration());
    EXPECT_FALSE(ended.has_value()) << "the daemon ended by itself: " << ended->ToString();
    // In order, so that a sanitizer's leak check runs.
    if (!ended) {
      const absl::Status status = Terminate();
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
  if (::testing::Test::HasFailure()) {
    std::cerr << "==== log of the daemon on " << absl::StrJoin(options_.addresses, " ") << "\n"
              << LastLines(Log(), kLogLinesShown) << "====\n";
  }
}

absl::Status DaemonProcess::Start() {
  if (!WriteFile(config_file(), MakeConfig(options_))) {
    return absl::InternalError("cannot write " + config_file());
  }
  const std::string notify_path = folder_.path() + "/notify";
  absl::StatusOr<UniqueFd> notify = OpenNotifySocket(notify_path);
  if (!notify.ok()) return notify.status();

  ProcessOptions process;
  process.environment = options_.environment;
  process.environment.push_back("NOTIFY_SOCKET=" + notify_path);
  process.output_file = log_file();
  if (options_.network != nullptr) process.network_fd = options_.network->fd();
  absl::StatusOr<ChildProcess> child = ChildProcess::Start(
      {Runfile("daemon/rdmad"), "--config", config_file(), "--run-dir", run_dir_}, process);
  if (!child.ok()) return child.status();
  child_ = std::move(child).value();
  absl::Status ready = WaitUntilReady(notify->get());
  if (!ready.ok()) child_.reset();
  return ready;
}

absl::Status DaemonProcess::WaitUntilReady(int notify_fd) {
  const absl::Time deadline = absl::Now() + Slow(absl::Seconds(10));
  while (absl::Now() < deadline) {
    std::array<pollfd, 2> polls = {pollfd{notify_fd, POLLIN, 0},
                                   pollfd{child_->pid_fd(), POLLIN, 0}};
    ::poll(polls.data(), polls.size(), 100);
    if (SaysReady(notify_fd)) return absl::OkStatus();
    if (const std::optional<ExitStatus> ended = child_->Wait(absl::ZeroDuration())) {
      return absl::InternalError(absl::StrCat("the daemon did not start: ", ended->ToString(), "\n",
                                              LastLines(Log(), kLogLinesShown)));
    }
  }
  return absl::InternalError("the daemon runs, but does not say READY=1\n" +
                             LastLines(Log(), kLogLinesShown));
}

void DaemonProcess::Kill() {
  if (!child_) return;
  child_->Kill();
  child_.reset();
}

absl::Status DaemonProcess::Terminate(absl::Duration timeout) {
  if (!child_) return absl::FailedPreconditionError("the daemon does not run");
  child_->Signal(SIGTERM);
  const std::optional<ExitStatus> ended = child_->Wait(Slow(timeout));
  child_.reset();
  if (!ended) return absl::InternalError("the daemon does not end on SIGTERM");
  if (!ended->ok()) return absl::InternalError("the daemon ended with " + ended->ToString());
  return absl::OkStatus();
}

std::string DaemonProcess::Log() const {
  return ReadFile(log_file());
}

}  // namespace rdmad::testing
