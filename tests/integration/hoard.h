// One of each object that plain traffic does not use, for an application that is to be killed with
// all of them.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "rdmad/rdmad.h"
#include "tests/integration/wired.h"

namespace rdmad::testing {

// A shared receive queue with receives, a UD QP on it that is in a group, the way to that QP, two
// RC QPs that are each other's peer, a memory window that one of them has bound, and an id of the
// UDP port space that has joined a group.
struct Hoard {
  WiredEnd near;
  WiredEnd far;
  SharedReceiveQueue srq;
  WiredEnd datagrams;
  AddressHandle way;
  MemoryRegion bindable;
  MemoryWindow window;
  std::unique_ptr<CmId> member;
};

// On the device that has `address`; its port does not matter. Errors: those of the calls; Internal
// (the window cannot be bound).
absl::StatusOr<Hoard> MakeHoard(const Client& client, Address address);

}  // namespace rdmad::testing
