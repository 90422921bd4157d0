// A bad network between the kernel's rxe and our daemon: tc-netem(8) on both ends of the veth pair of two_hosts.
#pragma once

#include <string>

namespace rdmad::testing {

// As long as it lives, each direction does to packets what `what` says, "loss 2% duplicate 5%". Failures fail the test.
class BadNetwork {
 public:
  explicit BadNetwork(const std::string& what);
  ~BadNetwork();
  BadNetwork(const BadNetwork&) = delete;
  BadNetwork& operator=(const BadNetwork&) = delete;

  // How many packets have been lost so far.
  [[nodiscard]] int lost() const;
};

}  // namespace rdmad::testing
