// Our soft device against the kernel's RDMA, in a guest with the set-up two_hosts of guest.sh: rdmad serves the namespace
// "peer", and rdma-core's own programs run over rxe in the first one.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/unique_fd.h"
#include "rdmad/rdmad.h"
#include "tests/support/child_process.h"
#include "tests/support/daemon_process.h"
#include "tests/support/temp_dir.h"

namespace rdmad::testing {

inline constexpr absl::Duration kPatience = absl::Seconds(120);

// Nobody sends a lost datagram again, nor a UC message of which a packet is lost: so often it is tried, and so long is waited
// for it. That all are lost is a fault.
inline constexpr int kUnreliableTries = 5;
inline constexpr absl::Duration kUnreliablePatience = absl::Seconds(10);

// As set up by two_hosts.
struct Addresses {
  const char* kernel;
  const char* ours;
};
inline constexpr Addresses kIpv4 = {"10.77.0.1", "10.77.0.2"};
inline constexpr Addresses kIpv6 = {"fd77::1", "fd77::2"};

// `wanted`, or the largest path MTU of the bed's links.
Mtu OnTheBed(Mtu wanted);
// So many bytes, or as many as one packet there carries.
size_t InOnePacket(size_t wanted);

std::string WithPort(const std::string& address, int port);

// Puts the calling thread, and what it starts, into the network namespace "peer" while it lives.
class InPeer {
 public:
  InPeer();
  ~InPeer();
  InPeer(const InPeer&) = delete;
  InPeer& operator=(const InPeer&) = delete;

  [[nodiscard]] bool entered() const { return entered_; }

 private:
  UniqueFd before_;
  UniqueFd peer_;
  bool entered_ = false;
};

// The daemon of "peer", and an application of it: for all tests of a program, since emulated programs take long to start.
class RxeBed : public ::testing::Environment {
 public:
  static RxeBed& Get();
  static bool IsInGuest();

  void SetUp() override;
  void TearDown() override;

  // False when SetUp failed.
  bool stands() const { return pool_.has_value(); }
  const DaemonProcess& daemon() const { return *daemon_; }
  const Client& client() const { return *client_; }
  Pool& pool() { return *pool_; }

 private:
  std::optional<DaemonProcess> daemon_;
  std::optional<Client> client_;
  std::optional<Pool> pool_;
};

class RxeInterop : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  const Client& client() { return RxeBed::Get().client(); }
  Pool& pool() { return RxeBed::Get().pool(); }
  std::string output_file() const { return folder_.path() + "/kernel"; }

  // Starts one of rdma-core's programs over rxe.
  absl::StatusOr<ChildProcess> StartKernel(const std::string& command_line);
  // Connects to a program that may not listen yet.
  absl::StatusOr<Endpoint> Connect(const std::string& peer);
  static void ExpectGoodEnd(ChildProcess& process);
  // What the daemon's soft device has counted since it started, a line each: what it dropped, and why.
  static std::string WhatRdmadCounted();

 private:
  const TempDir folder_;
};

}  // namespace rdmad::testing
