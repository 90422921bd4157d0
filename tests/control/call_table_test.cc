// The table of calls and the services of the protos are the same list.
#include "daemon/control/call_table.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/control/admin.h"
#include "proto/rdmad/v1/admin.pb.h"
#include "proto/rdmad/v1/cm.pb.h"
#include "proto/rdmad/v1/memory.pb.h"
#include "proto/rdmad/v1/session.pb.h"
#include "proto/rdmad/v1/verbs.pb.h"

namespace rdmad::control {
namespace {

std::vector<std::string> MethodsOfTheProtos() {
  std::vector<std::string> methods;
  for (const google::protobuf::Descriptor* message :
       {v1::GetStatusRequest::descriptor(), v1::CreateIdRequest::descriptor(),
        v1::CreatePoolRequest::descriptor(), v1::GetSessionRequest::descriptor(),
        v1::CreateQpRequest::descriptor()}) {
    const google::protobuf::FileDescriptor* file = message->file();
    for (int i = 0; i < file->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor* service = file->service(i);
      for (int j = 0; j < service->method_count(); ++j) {
        methods.push_back("/" + std::string(service->full_name()) + "/" +
                          std::string(service->method(j)->name()));
      }
    }
  }
  std::sort(methods.begin(), methods.end());
  return methods;
}

TEST(CallTable, HasEveryMethodOfTheProtosAndNoOther) {
  const CallTable table(nullptr);
  EXPECT_GT(MethodsOfTheProtos().size(), 35u);
  EXPECT_EQ(table.Methods(), MethodsOfTheProtos());
}

absl::Status Invoke(const std::string& method, const std::string& bytes) {
  absl::Status outcome = absl::OkStatus();
  CallTable(nullptr).Invoke(
      method, Caller(), bytes,
      [&](const absl::Status& status, const std::string&) { outcome = status; });
  return outcome;
}

TEST(CallTable, UnknownMethodIsUnimplemented) {
  for (const char* method :
       {"", "/", "/rdmad.v1.VerbsService/", "/rdmad.v2.VerbsService/CreateQp", "CreateQp"}) {
    EXPECT_EQ(Invoke(method, "").code(), absl::StatusCode::kUnimplemented) << method;
  }
}

TEST(CallTable, BytesThatAreNoRequestAreRefusedBeforeAnythingIsDone) {
  for (const std::string& method : CallTable(nullptr).Methods()) {
    EXPECT_EQ(Invoke(method, "\xff\xff\xff").code(), absl::StatusCode::kInvalidArgument) << method;
  }
}

}  // namespace
}  // namespace rdmad::control
