// From a call's name and bytes to the method that carries it out: the one set of handlers behind
// every door.
//
// A door (gRPC today) hands in the full method name, the request's bytes and who asks, and gets the
// reply's bytes or a status back, at once or later. It needs to know no message type.
//
// Thread: control. Owner: Daemon.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/session/session.h"

namespace rdmad::control {

class Admin;

// Who asks. Lives until the call's first part has returned; what goes on later keeps what it needs.
struct Caller {
  session::Session* session = nullptr;
  bool privileged = false;  // may see everybody's objects
};

// Runs once: OK with the reply's bytes, or an error.
using CallDone = std::function<void(const absl::Status& status, std::string reply)>;

class CallTable {
 public:
  // `admin` outlives the table.
  explicit CallTable(Admin* admin);

  // `method` as gRPC names it: "/rdmad.v1.VerbsService/CreateQp".
  // Errors of its own: Unimplemented (no such method), InvalidArgument (the bytes are no such
  // request).
  void Invoke(const std::string& method, const Caller& caller, const std::string& request,
              CallDone done) const;

  [[nodiscard]] std::vector<std::string> Methods() const;

 private:
  using Handler =
      std::function<void(const Caller& caller, const std::string& request, CallDone done)>;

  void AddSessionCalls();
  void AddCmCalls();
  void AddAdminCalls(Admin* admin);

  std::unordered_map<std::string, Handler> handlers_;
};

}  // namespace rdmad::control
