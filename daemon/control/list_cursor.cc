#include "daemon/control/list_cursor.h"

#include <cstddef>

#include "absl/status/status.h"

namespace rdmad::control {
namespace {

constexpr size_t kSessionBytes = 8;
constexpr size_t kSlotBytes = 4;

void Append(uint64_t value, size_t bytes, std::string* out) {
  while (bytes-- > 0) out->push_back(static_cast<char>(value >> 8 * bytes));
}

uint64_t Read(const std::string& text, size_t begin, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = begin; i < begin + bytes; ++i)
    value = value << 8 | static_cast<unsigned char>(text[i]);
  return value;
}

}  // namespace

std::string ToPage(const ListCursor& cursor) {
  std::string page;
  Append(cursor.session_id, kSessionBytes, &page);
  Append(cursor.slot, kSlotBytes, &page);
  return page;
}

absl::StatusOr<ListCursor> ParsePage(const std::string& page) {
  if (page.empty()) return ListCursor();
  if (page.size() != kSessionBytes + kSlotBytes) {
    return absl::InvalidArgumentError(
        "list: the page is none that a reply has named; begin again without one");
  }
  return ListCursor{Read(page, 0, kSessionBytes),
                    static_cast<uint32_t>(Read(page, kSessionBytes, kSlotBytes))};
}

}  // namespace rdmad::control
