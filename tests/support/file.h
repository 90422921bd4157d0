// Small files, whole, and where the data files of a test are.
#pragma once

#include <string>

namespace rdmad::testing {

// Empty if it cannot be read.
std::string ReadFile(const std::string& path);
// False if it cannot be written.
[[nodiscard]] bool WriteFile(const std::string& path, const std::string& text);

// The last `lines` lines of a text.
std::string LastLines(const std::string& text, int lines);

// Where the file with this path from the repository's root is: a dependency by `data` of the test
// that runs. Ends the program if it is not there.
std::string Runfile(const std::string& path);

}  // namespace rdmad::testing
