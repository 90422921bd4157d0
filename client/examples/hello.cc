// The smallest whole program: one message there, one back.
//
//   hello server 127.0.0.2:7471        RDMAD_RUN_DIR says which daemon; see rdmad --run-dir
//   hello client 127.0.0.2:7471
#include <cstdio>
#include <cstring>
#include <string>

#include "rdmad/rdmad.h"

namespace {

absl::Status Serve(const rdmad::Client& client, const std::string& address) {
  absl::StatusOr<rdmad::Listener> listener = rdmad::Listener::Listen(client, address);
  if (!listener.ok()) return listener.status();
  absl::StatusOr<rdmad::Endpoint> endpoint = listener->Accept();
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<rdmad::Buffer> message = endpoint->Receive();
  if (!message.ok()) return message.status();
  std::printf("server: got \"%s\"\n", std::string(message->text()).c_str());
  return endpoint->Send(*std::move(message));  // the same bytes back, without a copy
}

absl::Status Greet(const rdmad::Client& client, const std::string& address) {
  absl::StatusOr<rdmad::Endpoint> endpoint = rdmad::Endpoint::Connect(client, address);
  if (!endpoint.ok()) return endpoint.status();
  if (absl::Status sent = endpoint->SendCopy("hello, RDMA"); !sent.ok()) return sent;
  absl::StatusOr<rdmad::Buffer> answer = endpoint->Receive();
  if (!answer.ok()) return answer.status();
  std::printf("client: got \"%s\"\n", std::string(answer->text()).c_str());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const bool serve = argc == 3 && std::strcmp(argv[1], "server") == 0;
  if (!serve && (argc != 3 || std::strcmp(argv[1], "client") != 0)) {
    std::fprintf(stderr, "usage: hello server|client ADDRESS:PORT\n");
    return argc == 2 && std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  const absl::StatusOr<rdmad::Client> client = rdmad::Client::Attach();
  absl::Status status = client.status();
  if (status.ok()) status = serve ? Serve(*client, argv[2]) : Greet(*client, argv[2]);
  if (!status.ok()) std::fprintf(stderr, "hello: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
