#include "tests/integration/application.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "tests/integration/testbed.h"
#include "tests/support/file.h"

namespace rdmad::testing {
namespace {

constexpr char kListening[] = "listening ";

}  // namespace

absl::StatusOr<Application> Application::Start(const DaemonProcess& daemon, const std::string& role,
                                               const std::string& address, uint64_t seed) {
  auto folder = std::make_unique<TempDir>();
  ProcessOptions options;
  options.output_file = folder->path() + "/output";
  RD_ASSIGN_OR_RETURN(ChildProcess process,
                      ChildProcess::Start({Runfile("tests/integration/traffic_app"),
                                           daemon.run_dir(), role, address, absl::StrCat(seed)},
                                          options));
  return Application(std::move(folder), std::move(process));
}

absl::StatusOr<Application> Application::Listen(const DaemonProcess& daemon,
                                                const std::string& address, uint64_t seed) {
  RD_ASSIGN_OR_RETURN(Application app, Start(daemon, "listen", WithPort(address, 0), seed));
  const bool listens = Eventually(absl::Seconds(10), [&] {
    return app.Output().find(kListening) != std::string::npos || !app.process_.IsRunning();
  });
  const std::string output = app.Output();
  const size_t at = output.find(kListening);
  if (!listens || at == std::string::npos) {
    return absl::InternalError("the application does not listen: " + output);
  }
  app.port_ = static_cast<uint16_t>(std::stoi(output.substr(at + sizeof(kListening) - 1)));
  return app;
}

absl::StatusOr<Application> Application::Connect(const DaemonProcess& daemon,
                                                 const std::string& address, uint16_t port,
                                                 uint64_t seed, bool hoards) {
  return Start(daemon, hoards ? "hoard" : "connect", WithPort(address, port), seed);
}

absl::StatusOr<Application> Application::UseLanes(const DaemonProcess& daemon,
                                                  const std::string& address) {
  RD_ASSIGN_OR_RETURN(Application app, Start(daemon, "lanes", address, 0));
  const auto runs = [&app] { return app.Output().find("running") != std::string::npos; };
  Eventually(absl::Seconds(20), [&] { return runs() || !app.process_.IsRunning(); });
  if (runs()) return app;
  return absl::InternalError("the application does not run: " + app.Output());
}

std::string Application::Output() const {
  return ReadFile(folder_->path() + "/output");
}

}  // namespace rdmad::testing
