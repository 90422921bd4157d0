// Where a list goes on: what the `page` of a list request says. Clients take it for bytes that mean
// nothing; one that makes up its own gets a list that begins elsewhere, of what it may see anyway.
//
// Session ids only grow and an object keeps its slot, so whatever lives through a whole list is
// before the cursor or behind it, never both.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace rdmad::control {

struct ListCursor {
  uint64_t session_id = 0;
  uint32_t slot = 0;  // of that session's table

  friend bool operator==(const ListCursor&, const ListCursor&) = default;
};

std::string ToPage(const ListCursor& cursor);
// Empty: the beginning. Errors: InvalidArgument.
absl::StatusOr<ListCursor> ParsePage(const std::string& page);

}  // namespace rdmad::control
