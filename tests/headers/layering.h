// The modules of the sources and the allowed includes between them (docs/architecture.md).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::test {

/// Includes of each file: Lockstep's headers as paths from the top of the tree ("ops/loss.h"), other headers as in
/// read_includes().
using Includes = std::map<std::string, std::set<std::string>>;

/// Folders with sources that obey the table of modules.
inline const std::vector<std::string> source_folders{"runtime", "ops", "parallel", "samples", "bench"};

/// Reads the includes of the sources in these folders under `top`. Headers of the system and of other libraries are in
/// angle brackets: "<vector>".
Includes read_includes(const std::string& top, const std::vector<std::string>& folders = source_folders);

/// Names the headers that `header` includes, directly or through others, although a public header may not: private
/// headers of Lockstep and headers of other libraries.
std::vector<std::string> dragged_in(const Includes& includes, const std::string& header);

/// Lines of a source with test cases that define a name with external linkage: "12: struct Net {". Tests of one program
/// would silently share it.
std::vector<std::string> shared_names(const std::string& source);

/// Types that several of these sources (path and text) define, one per line: "lockstep::Net: a.h, b.h". The linker does
/// not report them, and calls the functions of either.
std::vector<std::string> repeated_types(const std::map<std::string, std::string>& sources);

/// The public headers among the files.
std::vector<std::string> public_headers(const Includes& includes);

/// Forbidden includes: of a module that the including module may not use, and of private headers in places that allow
/// only public ones.
std::vector<std::string> forbidden_arrows(const Includes& includes);

/// Circular dependencies among files of `parallel/`, header and source taken together: a line per cycle.
std::vector<std::string> cycles(const Includes& includes);

}  // namespace lockstep::test
