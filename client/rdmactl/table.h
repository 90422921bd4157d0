// Text tables and numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rdmad::rdmactl {

// Columns as wide as their longest cell; columns of numbers are right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  // As many cells as the header has.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const noexcept { return rows_.empty(); }
  std::string ToString() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// "1.5 MiB".
std::string Bytes(uint64_t bytes);
// "3d 4h", "12m 5s", "840ms".
std::string Age(uint64_t milliseconds);

}  // namespace rdmad::rdmactl
