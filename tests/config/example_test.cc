// config/rdmad.toml shows every key with its default.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "daemon/control/config.h"
#include "tests/support/file.h"
#include "tests/support/status_testing.h"

namespace rdmad::control {
namespace {

std::string Example() {
  return testing::ReadFile(testing::Runfile("config/rdmad.toml"));
}

TEST(ExampleConfig, IsTheDefaults) {
  const absl::StatusOr<Config> config = ParseConfig(Example(), "rdmad.toml");
  ASSERT_OK(config);
  EXPECT_EQ(*config, Config());
}

// "# key = value" is an example of a key that has no fixed default; prose has no " = " behind its
// first word.
std::string WithCommentedKeys() {
  std::istringstream lines(Example());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const size_t end_of_word = line.find(' ', 2);
    const bool key = line.rfind("# ", 0) == 0 && end_of_word != std::string::npos &&
                     line.compare(end_of_word, 3, " = ") == 0;
    text += (key ? line.substr(2) : line) + "\n";
  }
  return text;
}

TEST(ExampleConfig, CommentedKeysAreValid) {
  const std::string text = WithCommentedKeys();
  ASSERT_NE(text, Example());
  const absl::StatusOr<Config> config = ParseConfig(text, "rdmad.toml");
  ASSERT_OK(config);
  EXPECT_TRUE(config->policy.allow_users.has_value());
  EXPECT_TRUE(config->policy.allow_groups.has_value());
}

// Every key that the reader knows stands in the example: an unknown one lists them all.
TEST(ExampleConfig, HasEveryKey) {
  const std::string example = Example();
  for (const char* table :
       {"", "log", "metrics", "soft", "engine", "policy", "limits", "session_limits",
        "user_limits"}) {
    const std::string head = *table != '\0' ? std::string("[") + table + "]\n" : "";
    const absl::StatusOr<Config> config =
        ParseConfig(head + "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqq = 1", "t");
    const std::string message(config.status().message());
    const size_t list = message.find("known here: ");
    ASSERT_NE(list, std::string::npos) << message;
    std::istringstream keys(message.substr(list + 12));
    for (std::string key; std::getline(keys, key, ',');) {
      if (key.front() == ' ') key.erase(0, 1);
      const bool is_table = example.find("\n[" + key + "]") != std::string::npos;
      EXPECT_TRUE(is_table || example.find("\n" + key + " = ") != std::string::npos ||
                  example.find("\n# " + key + " = ") != std::string::npos)
          << "no " << key << " under [" << table << "]";
    }
  }
}

}  // namespace
}  // namespace rdmad::control
