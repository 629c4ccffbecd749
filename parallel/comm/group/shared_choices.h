// Decisions of the processes of a job without synchronization: the first one decides.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

class Store;

/// Answers a question identically in all processes that use the same store and name, whether they ask at the same time,
/// at different times or not at all. The first answer in the store counts; a process that finds one does not call
/// `own`. Uses a separate connection. Throws CommunicationError; exceptions of `own` are passed on, and leave the
/// question to the others.
std::function<std::string(const std::string& question, const std::function<std::string()>& own)> decided_together(
    Store& store, const std::string& name);

}  // namespace lockstep
