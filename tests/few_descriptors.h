// Tests that leave a program no descriptors, and the builds in which that can't be tried.
#pragma once

namespace lockstep::testing {

/// UBSan opens a pipe to look at the memory of a type that is new to it, and calls a sound object wrong if it can't.
#if defined(__SANITIZE_ADDRESS__)  // such builds have both
constexpr bool can_be_without_descriptors = false;
#else
constexpr bool can_be_without_descriptors = true;
#endif

/// What a test case says that can't be run for this reason.
constexpr const char* sanitizers_need_descriptors = "skipped: UBSan itself needs descriptors";

}  // namespace lockstep::testing
