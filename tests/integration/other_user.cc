// What somebody else on the host can do; run by identity_test as another user.
//
//   other_user RUN_DIR attach          attaches twice and looks around. Prints "attach CODE", and then
//                                      "privileged 0|1" and "sees UID..." of the sessions
//   other_user RUN_DIR hoard           makes PDs in two sessions, in turns, until one is refused.
//                                      Prints "made NUMBER", "hoard CODE", the message, and what its
//                                      status says of users
//   other_user RUN_DIR call TOKEN      calls with another's token, in hex. Prints "call CODE"
#include <cstdio>
#include <string>

#include "absl/strings/escaping.h"
#include "tests/support/raw_client.h"

namespace rdmad::testing {
namespace {

int Say(const char* what, const absl::Status& status) {
  std::printf("%s %s\n%s\n", what, absl::StatusCodeToString(status.code()).c_str(),
              std::string(status.message()).c_str());
  return 0;
}

int Attach(const std::string& run_dir) {
  const absl::StatusOr<RawClient> raw = RawClient::Attach(run_dir, "other user");
  Say("attach", raw.status());
  if (!raw.ok()) return 0;
  const absl::StatusOr<RawClient> second = RawClient::Attach(run_dir, "the same user");
  if (!second.ok()) return Say("second", second.status());
  v1::GetStatusReply status;
  absl::Status called = raw->Call(raw->admin(), &v1::AdminService::Stub::GetStatus, {}, &status);
  if (!called.ok()) return Say("status", called);
  std::printf("privileged %d\n", status.privileged_view() ? 1 : 0);
  v1::ListSessionsReply sessions;
  called = raw->Call(raw->admin(), &v1::AdminService::Stub::ListSessions, {}, &sessions);
  if (!called.ok()) return Say("sessions", called);
  std::printf("sees");
  for (const v1::SessionStatus& session : sessions.sessions()) std::printf(" %u", session.uid());
  std::printf("\n");
  return 0;
}

int Hoard(const std::string& run_dir) {
  const absl::StatusOr<RawClient> one = RawClient::Attach(run_dir, "one");
  const absl::StatusOr<RawClient> two = RawClient::Attach(run_dir, "two");
  if (!one.ok() || !two.ok()) return Say("attach", one.ok() ? two.status() : one.status());
  absl::Status refused;
  int made = -1;
  while (refused.ok() && made < 1000) {
    const RawClient& session = ++made % 2 == 0 ? *one : *two;
    v1::AllocPdReply pd;
    refused = session.Call(session.verbs(), &v1::VerbsService::Stub::AllocPd, {}, &pd);
  }
  std::printf("made %d\n", made);
  v1::GetStatusReply status;
  const absl::Status asked =
      one->Call(one->admin(), &v1::AdminService::Stub::GetStatus, {}, &status);
  if (!asked.ok()) return Say("status", asked);
  Say("hoard", refused);
  for (const v1::UserStatus& user : status.users()) {
    std::printf("user %u sessions %u refused %u", user.uid(), user.sessions(),
                static_cast<unsigned>(user.refusals()));
    for (const v1::QuotaUse& use : user.quotas()) {
      if (use.limit() == "max_pds")
        std::printf(" pds %u of %u\n", static_cast<unsigned>(use.in_use()),
                    static_cast<unsigned>(use.value()));
    }
  }
  return 0;
}

int CallWith(const std::string& run_dir, const std::string& token) {
  const std::unique_ptr<v1::SessionService::Stub> stub =
      v1::SessionService::NewStub(ConnectRpc(run_dir));
  v1::GetSessionReply reply;
  return Say("call",
             RawClient::CallAs(token, *stub, &v1::SessionService::Stub::GetSession, {}, &reply));
}

}  // namespace
}  // namespace rdmad::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[2]) == "hoard") return rdmad::testing::Hoard(argv[1]);
  if (argc == 3) return rdmad::testing::Attach(argv[1]);
  if (argc == 4) return rdmad::testing::CallWith(argv[1], absl::HexStringToBytes(argv[3]));
  return 2;
}
