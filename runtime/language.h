// The language that public headers need: each includes this header, directly or through another one. A program that is
// compiled otherwise gets one sentence, not pages of errors.
#pragma once

#if __cplusplus < 202002L || !defined(__cpp_exceptions) || !defined(__cpp_rtti)
#if __cplusplus < 202002L
#error Lockstep needs C++20: compile with -std=c++20 or later
#elif !defined(__cpp_exceptions)
#error Lockstep throws exceptions: compile without -fno-exceptions
#else
#error Lockstep needs run-time type information: compile without -fno-rtti
#endif
// Compilers continue after #error, but not after a missing file.
#include <the error above ends the compilation>
#endif
