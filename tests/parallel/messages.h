// Exact messages of exceptions, for tests.
#pragma once

#include <exception>
#include <string>

/// What `action` throws, as E; says so when it throws nothing.
template <class E, class Action>
std::string message_of(const Action& action) {
    try {
        action();
    } catch (const E& error) {
        return error.what();
    }
    return "nothing was thrown";
}
