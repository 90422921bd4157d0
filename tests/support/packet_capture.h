// Writes the RoCE packets of an interface into a pcap file.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "tests/support/net_namespace.h"

namespace rdmad::testing {

// A capture from Start() to Stop(), by a thread of its own. Owner: the test.
class PacketCapture {
 public:
  // Both directions.
  static absl::StatusOr<std::unique_ptr<PacketCapture>> Start(const NetNamespace& network,
                                                              const std::string& interface,
                                                              const std::string& pcap_path);
  ~PacketCapture();
  PacketCapture(const PacketCapture&) = delete;
  PacketCapture& operator=(const PacketCapture&) = delete;

  // Takes what has arrived so far, closes the file and returns the number of packets in it.
  // Errors: DataLoss (the kernel had to drop some, or the file could not be written).
  absl::StatusOr<uint64_t> Stop();

 private:
  PacketCapture(UniqueFd socket, UniqueFd stop, const std::string& pcap_path);
  void Run();

  const UniqueFd socket_;
  const UniqueFd stop_;
  const std::string pcap_path_;
  absl::Status status_;
  uint64_t packets_ = 0;
  std::thread thread_;
};

}  // namespace rdmad::testing
