// What a host lacks that rdmad would like to have: nothing that keeps it from starting, but what
// somebody will run into later.
#pragma once

#include <string>
#include <vector>

#include "daemon/control/config.h"

namespace rdmad {

// One line each, with the limit, its value and what to do; none on a host that is fit for this
// configuration. Thread: any. Source: getrlimit(2); Documentation/admin-guide/mm/hugetlbpage.rst in
// the kernel's tree.
std::vector<std::string> HostNotes(const control::Config& config);

}  // namespace rdmad
