// The modules of the sources and the arrows between them (docs/architecture.md).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::test {

/// The files that each file includes, by path from the top of the tree: "ops/loss.h". Of others those in quotes.
using Includes = std::map<std::string, std::set<std::string>>;

/// Folders of the sources that obey the table of modules.
inline const std::vector<std::string> source_folders{"runtime", "ops", "parallel", "samples", "bench"};

/// Reads the includes of the sources in these folders under `top`. Headers of the system and of other libraries are in
/// angle brackets: "<vector>".
Includes read_includes(const std::string& top, const std::vector<std::string>& folders = source_folders);

/// Names the headers that `header` includes, directly or through others, although a public header may not: private
/// headers of Lockstep and headers of other libraries.
std::vector<std::string> dragged_in(const Includes& includes, const std::string& header);

/// Lines of a source with test cases that define a name with external linkage: "12: struct Net {". Tests of one program
/// would share it without a word.
std::vector<std::string> shared_names(const std::string& source);

/// The public headers among the files.
std::vector<std::string> public_headers(const Includes& includes);

/// Includes of a module that the including one may not know, and private headers where only public ones may be.
std::vector<std::string> forbidden_arrows(const Includes& includes);

/// Files of `parallel/` that depend on each other in a circle, header and source taken together: a line per circle.
std::vector<std::string> cycles(const Includes& includes);

}  // namespace lockstep::test
