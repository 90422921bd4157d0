// filecopy: a file from one application to another, over RDMA.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "client/examples/filecopy/copy.h"

namespace {

constexpr char kFooter[] =
    "Exit codes: 0 copied and verified, 1 failed, 2 wrong usage.\n"
    "\n"
    "Example, two daemons on one host:\n"
    "  filecopy --run-dir /tmp/b recv 127.0.0.3:7471 --output /tmp/copy\n"
    "  filecopy --run-dir /tmp/a send /usr/bin/gdb 127.0.0.3:7471";

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

int Report(const char* role, const absl::StatusOr<filecopy::Outcome>& outcome, bool json) {
  if (!outcome.ok()) {
    std::fprintf(stderr, "filecopy %s: %s\n", role, std::string(outcome.status().message()).c_str());
    return 1;
  }
  const double megabytes = static_cast<double>(outcome->bytes) / 1e6;
  const double rate = outcome->seconds > 0 ? megabytes / outcome->seconds : 0;
  if (json) {
    std::printf("{\"role\": \"%s\", \"file\": %s, \"mode\": \"%s\", \"bytes\": %llu, \"seconds\": %.6f, "
                "\"mbytes_per_s\": %.1f, \"sha256\": \"%s\"}\n",
                role, Quoted(outcome->file).c_str(), filecopy::ModeName(outcome->mode),
                static_cast<unsigned long long>(outcome->bytes), outcome->seconds, rate, outcome->sha256.c_str());
  } else {
    std::printf("%s: %s  %.1f MB in %.2f s  %.0f MB/s  mode %s  sha256 %s\n", role, outcome->file.c_str(), megabytes,
                outcome->seconds, rate, filecopy::ModeName(outcome->mode), outcome->sha256.c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Copies a file between two applications over RDMA and verifies its SHA-256.", "filecopy");
  app.footer(kFooter);
  app.require_subcommand(1);
  rdmad::AttachOptions attach;
  attach.name = "filecopy";
  bool json = false;
  app.add_option("--run-dir", attach.run_dir, "directory of the daemon's sockets")->envname("RDMAD_RUN_DIR");
  app.add_flag("--json", json, "print the outcome as one JSON object");

  filecopy::SendOptions send;
  CLI::App* send_app = app.add_subcommand("send", "send FILE to a waiting filecopy");
  send_app->fallthrough();
  send_app->add_option("FILE", send.file, "a regular file")->required();
  send_app->add_option("PEER", send.peer, "host:port of the receiver")->required();
  const std::map<std::string, filecopy::Mode> modes = {
      {"send", filecopy::Mode::kSend}, {"write", filecopy::Mode::kWrite}, {"read", filecopy::Mode::kRead}};
  std::string mode = "write";
  send_app->add_option("--mode", mode, "send (two-sided), write or read (one-sided)")
      ->type_name("MODE")
      ->check(CLI::IsMember(std::vector<std::string>{"send", "write", "read"}))
      ->capture_default_str();
  send_app->add_option("--chunk", send.chunk_bytes, "bytes of one operation")
      ->check(CLI::Range(uint32_t{1}, uint32_t{64} << 20))
      ->capture_default_str();
  send_app->add_option("--depth", send.slot_count, "operations under way at a time")
      ->check(CLI::Range(uint32_t{1}, uint32_t{1024}))
      ->capture_default_str();

  filecopy::ReceiveOptions receive;
  CLI::App* receive_app = app.add_subcommand("recv", "wait for one file");
  receive_app->fallthrough();
  receive_app->add_option("ADDRESS", receive.address, "address:port to listen on")->required();
  receive_app->add_option("--output", receive.output, "file or folder to write; default: the sender's name, here");
  receive_app->add_option("--max-chunk", receive.max_chunk_bytes, "longest chunk to take, in bytes")
      ->check(CLI::Range(uint32_t{1}, uint32_t{64} << 20))
      ->capture_default_str();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of the file's size is an error like a full disk
  send.mode = modes.at(mode);
  send.quiet = receive.quiet = json;
  const char* role = send_app->parsed() ? "send" : "recv";
  const absl::StatusOr<rdmad::Client> client = rdmad::Client::Attach(attach);
  if (!client.ok()) return Report(role, client.status(), json);
  return Report(role, send_app->parsed() ? SendFile(*client, send) : ReceiveFile(*client, receive), json);
}
