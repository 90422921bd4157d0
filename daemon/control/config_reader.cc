#include "daemon/control/config_reader.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rdmad::control {
namespace {

// "a string", "an integer", ...
std::string TypeName(toml::node_type type) {
  switch (type) {
    case toml::node_type::none:
      return "nothing";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date with a time";
  }
  return "something else";
}

// Levenshtein's distance, for "did you mean".
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

void ConfigProblems::Add(const toml::source_region& where, const std::string& text) {
  problems_.push_back({where.begin, text});
}

std::vector<std::string> ConfigProblems::Lines() const {
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.where.line, a.where.column) < std::pair(b.where.line, b.where.column);
  });
  std::vector<std::string> lines;
  for (const Problem& problem : sorted) {
    lines.push_back(absl::StrCat(name_, ":", problem.where.line, ":", problem.where.column, ": ",
                                 problem.text));
  }
  return lines;
}

TableReader::TableReader(const toml::table& table, std::string path, ConfigProblems* problems)
    : table_(&table), path_(std::move(path)), problems_(problems) {}

std::optional<TableReader> TableReader::Table(const char* key) {
  const toml::node* node = Find(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_table()) {
    problems_->Add(node->source(), absl::StrCat(Name(key), " must be a table, not ",
                                                TypeName(node->type()), "; write [", key, "]"));
    return std::nullopt;
  }
  return TableReader(*node->as_table(), key, problems_);
}

void TableReader::Read(const char* key, bool* out) {
  const toml::node* node = Find(key);
  if (node == nullptr) return;
  if (!node->is_boolean()) {
    problems_->Add(node->source(),
                   absl::StrCat(Name(key), " must be true or false, not ", TypeName(node->type())));
    return;
  }
  *out = node->as_boolean()->get();
}

void TableReader::Read(const char* key, std::string* out,
                       const std::function<std::string(const std::string&)>& check) {
  const toml::node* node = Find(key);
  if (node == nullptr) return;
  if (!node->is_string()) {
    problems_->Add(node->source(),
                   absl::StrCat(Name(key), " must be a string, not ", TypeName(node->type()),
                                node->is_integer() ? "; put it in quotes" : ""));
    return;
  }
  const std::string& text = node->as_string()->get();
  if (std::string wrong = check(text); !wrong.empty()) {
    problems_->Add(node->source(), absl::StrCat(Name(key), ": ", wrong));
    return;
  }
  *out = text;
}

void TableReader::Read(const char* key, uint64_t min, uint64_t max, uint64_t* out) {
  const toml::node* node = Find(key);
  if (node == nullptr) return;
  if (!node->is_integer()) {
    problems_->Add(node->source(),
                   absl::StrCat(Name(key), " must be an integer, not ", TypeName(node->type())));
    return;
  }
  const int64_t value = node->as_integer()->get();
  if (value < 0 || static_cast<uint64_t>(value) < min || static_cast<uint64_t>(value) > max) {
    problems_->Add(node->source(), absl::StrCat(Name(key), " = ", value, " is out of range; use ",
                                                min, " to ", max));
    return;
  }
  *out = static_cast<uint64_t>(value);
}

void TableReader::Read(const char* key, uint64_t min, uint64_t max, uint32_t* out) {
  uint64_t wide = *out;
  Read(key, min, std::min<uint64_t>(max, UINT32_MAX), &wide);
  *out = static_cast<uint32_t>(wide);
}

void TableReader::ReadList(const char* key, bool numbers_too, std::vector<std::string>* out,
                           const std::function<std::string(const std::string&)>& check) {
  const toml::node* node = Find(key);
  if (node == nullptr) return;
  if (!node->is_array()) {
    problems_->Add(node->source(), absl::StrCat(Name(key), " must be a list, not ",
                                                TypeName(node->type()), "; put it in [ ]"));
    return;
  }
  std::vector<std::string> read;
  bool good = true;
  for (const toml::node& element : *node->as_array()) {
    std::string text;
    if (element.is_string()) {
      text = element.as_string()->get();
    } else if (numbers_too && element.is_integer()) {
      text = absl::StrCat(element.as_integer()->get());
    } else {
      problems_->Add(element.source(), absl::StrCat(Name(key), " holds ", TypeName(element.type()),
                                                    "; its elements must be strings"));
      good = false;
      continue;
    }
    if (std::string wrong = check(text); !wrong.empty()) {
      problems_->Add(element.source(), absl::StrCat(Name(key), ": ", wrong));
      good = false;
      continue;
    }
    read.push_back(std::move(text));
  }
  if (good) *out = std::move(read);
}

void TableReader::Complain(const char* key, const std::string& text) {
  const toml::node* node = table_->get(key);
  problems_->Add(node != nullptr ? node->source() : table_->source(), text);
}

void TableReader::Finish() {
  for (const auto& [key, node] : *table_) {
    const std::string name(key.str());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::string text = absl::StrCat("unknown ", node.is_table() ? "table [" : "key \"", name,
                                    node.is_table() ? "]" : "\"");
    if (!path_.empty()) absl::StrAppend(&text, " in [", path_, "]");
    std::string nearest;
    size_t nearest_distance = 4;
    for (const std::string& known : known_) {
      const size_t distance = EditDistance(name, known);
      if (distance < nearest_distance && distance < known.size()) {
        nearest_distance = distance;
        nearest = known;
      }
    }
    if (nearest.empty()) {
      std::string all;
      for (const std::string& known : known_) absl::StrAppend(&all, all.empty() ? "" : ", ", known);
      absl::StrAppend(&text, "; known here: ", all);
    } else {
      absl::StrAppend(&text, "; did you mean \"", nearest, "\"?");
    }
    problems_->Add(key.source(), text);
  }
}

const toml::node* TableReader::Find(const char* key) {
  known_.emplace_back(key);
  return table_->get(key);
}

std::string TableReader::Name(const char* key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

}  // namespace rdmad::control
