// What the processes of a job decide together without waiting for each other: whoever is first decides.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

class Store;

/// Answers a question alike in all processes that use the same store and name, whether they ask at the same time, at
/// different ones or not at all: the first answer that comes to the store counts, and who finds one there asks `own`
/// no more. Keeps a connection of its own. Throws CommunicationError; what `own` throws comes through, and leaves the
/// question to the others.
std::function<std::string(const std::string& question, const std::function<std::string()>& own)> decided_together(
    Store& store, const std::string& name);

}  // namespace lockstep
