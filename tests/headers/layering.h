// The rooms of the sources and the arrows between them (docs/architecture.md).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::test {

/// The files that each file includes, by path from the top of the tree: "ops/loss.h". Of others those in quotes.
using Includes = std::map<std::string, std::set<std::string>>;

/// What stands in the sources under `top`.
Includes read_includes(const std::string& top);

/// Includes of a room that the including one may not know, and private headers where only public ones may be.
std::vector<std::string> forbidden_arrows(const Includes& includes);

/// Files of `parallel/` that depend on each other in a circle, header and source taken together: a line per circle.
std::vector<std::string> cycles(const Includes& includes);

}  // namespace lockstep::test
