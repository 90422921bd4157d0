// A network for the tests of this folder: a namespace that only this process is in, if the kernel
// lets us make one (root, or unprivileged user namespaces), with nothing but the loopback
// interface. It vanishes with the process. There the real port can be used and MTU, delay and
// addresses can be changed; without it, tests share the host's loopback on a port of their own, and
// those that need more are skipped.
#pragma once

#include <cstdint>
#include <string>

namespace rdmad::testing {

// Enters the namespace at the first call, which must come before the process has a second thread.
// Is it ours alone?
bool HavePrivateNetwork();

// The port that stands for 4791: that one in a private network, else one that other processes'
// tests do not use.
uint16_t TestPort();

// In a private network only; false if it fails.
bool AddIpv6Address(const std::string& address, const std::string& interface = "lo");
bool SetMtu(const std::string& interface, int mtu);
// A second namespace beside the private one, joined to it by a veth pair, "left" here and "right"
// there, both up. Moves the calling thread there and back: what it opens there stays there. Gone
// with the object.
class SecondNetwork {
 public:
  SecondNetwork();
  ~SecondNetwork();
  SecondNetwork(const SecondNetwork&) = delete;
  SecondNetwork& operator=(const SecondNetwork&) = delete;

  // False: it could not be made (no privilege, no ip, no veth).
  bool ok() const { return there_ >= 0; }
  void Enter();
  void Leave();

 private:
  int here_ = -1;
  int there_ = -1;
};

// Runs a shell command quietly; true if it exits with 0.
bool Run(const std::string& command);

}  // namespace rdmad::testing
