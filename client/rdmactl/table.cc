#include "client/rdmactl/table.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace rdmad::rdmactl {
namespace {

bool LooksLikeNumber(const std::string& cell) {
  return cell == "-" || (!cell.empty() && std::isdigit(static_cast<unsigned char>(cell.front())) != 0 &&
                         cell.find_first_of(":[") == std::string::npos);
}

std::string Format(const char* format, double value) {
  char text[32];
  // The callers below give literals of one double each.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(text, sizeof(text), format, value);
#pragma GCC diagnostic pop
  return text;
}

}  // namespace

std::string Table::ToString() const {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (size_t column = 0; column < header_.size(); ++column) {
    size_t width = header_[column].size();
    bool numbers = !rows_.empty();
    for (const std::vector<std::string>& row : rows_) {
      width = std::max(width, row[column].size());
      numbers = numbers && LooksLikeNumber(row[column]);
    }
    widths.push_back(width);
    right.push_back(numbers);
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - row[column].size(), ' ');
      if (column != 0) line += "  ";
      line += right[column] ? padding + row[column] : row[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add(header_);
  for (const std::vector<std::string>& row : rows_) add(row);
  return text;
}

std::string Bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return Format(unit == 0 ? "%.0f " : "%.1f ", value) + kUnits[unit];
}

std::string Age(uint64_t milliseconds) {
  if (milliseconds < 1000) return std::to_string(milliseconds) + "ms";
  const uint64_t seconds = milliseconds / 1000;
  if (seconds < 60) return std::to_string(seconds) + "s";
  if (seconds < 3600) return std::to_string(seconds / 60) + "m " + std::to_string(seconds % 60) + "s";
  if (seconds < 86400) return std::to_string(seconds / 3600) + "h " + std::to_string(seconds / 60 % 60) + "m";
  return std::to_string(seconds / 86400) + "d " + std::to_string(seconds / 3600 % 24) + "h";
}

}  // namespace rdmad::rdmactl
