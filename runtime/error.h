// Exceptions of the library. Every message is one line: the function, what is wrong and what was expected.
// Nothing in Lockstep aborts or exits; destructors never throw.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Base of everything that the library throws on purpose.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The caller's mistake: a shape, a flag, a device that does not exist. Nothing has changed.
class InvalidArgument : public Error {
public:
    /// `message` begins with the name of a function. If the program has called another one, which is made of that one,
    /// both are named: "conv1d (conv2d): input (1, 2, 1, 4) has 2 channels; ...".
    explicit InvalidArgument(const std::string& message);
};

/// An environment variable has a malformed value, or several contradict each other: the message names them.
class InvalidEnvironment : public InvalidArgument {
public:
    using InvalidArgument::InvalidArgument;
};

/// A device or its library failed: the message names call, status, device, file and line.
class DeviceError : public Error {
public:
    using Error::Error;
};

/// Out of memory on a device: the message names the device, the requested and the free bytes, and what holds the rest.
class OutOfMemory : public DeviceError {
public:
    using DeviceError::DeviceError;
};

/// Communication between processes failed: the message names rank, operation and sequence number.
class CommunicationError : public Error {
public:
    using Error::Error;
};

/// A file is malformed: the message names the file and the byte offset.
class DataError : public Error {
public:
    using Error::Error;
};

/// A training step found a value that it must not use (a NaN loss, a target out of range). The model is as before that
/// step.
class StepError : public Error {
public:
    StepError(const std::string& message, std::int64_t step) : Error(message), step_(step) {}
    /// Number of the step that was refused, counted from 0.
    std::int64_t step() const { return step_; }

private:
    std::int64_t step_;
};

}  // namespace lockstep
