// Another user, for door_test: attaches, or calls with somebody's token, and prints what came of
// it.
//
//   stranger RUN_DIR             "attached sessions=N privileged=0|1", or the error
//   stranger RUN_DIR TOKEN_HEX   "answered", or the error
#include <cstdio>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/support/raw_client.h"

namespace rdmad::testing {
namespace {

absl::Status Attach(const std::string& run_dir) {
  const absl::StatusOr<RawClient> client = RawClient::Attach(run_dir, "stranger");
  if (!client.ok()) return client.status();
  v1::GetStatusReply reply;
  absl::Status status = client->Call(client->admin(), &v1::AdminService::Stub::GetStatus,
                                     v1::GetStatusRequest(), &reply);
  if (status.ok())
    std::printf("attached sessions=%u privileged=%d\n", reply.sessions(), reply.privileged_view());
  return status;
}

absl::Status Call(const std::string& run_dir, const std::string& token) {
  const auto stub = v1::SessionService::NewStub(ConnectRpc(run_dir));
  v1::GetSessionReply reply;
  absl::Status status = RawClient::CallAs(token, *stub, &v1::SessionService::Stub::GetSession,
                                          v1::GetSessionRequest(), &reply);
  if (status.ok()) std::printf("answered\n");
  return status;
}

}  // namespace
}  // namespace rdmad::testing

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  const absl::Status status = argc == 2
                                  ? rdmad::testing::Attach(argv[1])
                                  : rdmad::testing::Call(argv[1], absl::HexStringToBytes(argv[2]));
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
