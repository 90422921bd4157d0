// Reads one TOML table key by key, and collects what is wrong with it.
//
// A reader marks each key it was asked for; Finish() reports the others as unknown, with the
// nearest known word. Nothing stops at the first problem: the person who edits the file sees all of
// them at once. A key that is wrong leaves the default in place.
//
// Thread: any. Owner: ParseConfig(), for the time of one parse.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rdmad::control {

// The lines of an error report, "name:line:column: text".
class ConfigProblems {
 public:
  explicit ConfigProblems(std::string name) : name_(std::move(name)) {}

  void Add(const toml::source_region& where, const std::string& text);
  // By position in the file.
  [[nodiscard]] std::vector<std::string> Lines() const;

 private:
  struct Problem {
    toml::source_position where;
    std::string text;
  };
  std::string name_;
  std::vector<Problem> problems_;
};

class TableReader {
 public:
  // `path` is the table's name as it stands in messages, empty for the root.
  TableReader(const toml::table& table, std::string path, ConfigProblems* problems);

  // A reader for the table under `key`; empty if there is none (or it is no table: reported).
  std::optional<TableReader> Table(const char* key);

  void Read(const char* key, bool* out);
  // `check` returns what is wrong with the text, or "".
  void Read(const char* key, std::string* out,
            const std::function<std::string(const std::string&)>& check);
  void Read(const char* key, uint64_t min, uint64_t max, uint64_t* out);
  void Read(const char* key, uint64_t min, uint64_t max, uint32_t* out);
  // A list of texts; numbers are taken as text where `numbers_too`.
  void ReadList(const char* key, bool numbers_too, std::vector<std::string>* out,
                const std::function<std::string(const std::string&)>& check);

  [[nodiscard]] bool Has(const char* key) const { return table_->contains(key); }
  // Reports a problem at the place of `key`.
  void Complain(const char* key, const std::string& text);
  // Reports every key that nobody asked for.
  void Finish();

 private:
  const toml::node* Find(const char* key);
  [[nodiscard]] std::string Name(const char* key) const;

  const toml::table* table_;
  std::string path_;
  ConfigProblems* problems_;
  std::vector<std::string> known_;
};

}  // namespace rdmad::control
