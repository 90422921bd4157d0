// A running daemon with its doors, and a client that may ask a question.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/control/daemon_bed.h"

namespace rdmad::testing {

inline absl::Status GetSession(const RawClient& client, const std::string& token) {
  v1::GetSessionReply reply;
  return RawClient::CallAs(token, client.session(), &v1::SessionService::Stub::GetSession,
                           v1::GetSessionRequest(), &reply);
}

class Door : public ::testing::Test {
 protected:
  void Start(const std::string& more_config = "") {
    daemon_ = std::make_unique<DaemonProcess>(OwnDaemon(more_config));
    ASSERT_OK(daemon_->Start());
  }
  absl::StatusOr<RawClient> Attach(const std::string& name = "raw") {
    return RawClient::Attach(daemon_->run_dir(), name);
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace rdmad::testing
