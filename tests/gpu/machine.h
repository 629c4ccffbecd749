// What lies below a test of the CUDA backend: the stand-in or real cards. One source makes two programs: test_x is
// linked with the stand-in and its side of this header (cuda_standin/machine.cpp), test_x_gpu with the CUDA libraries
// and the other side (machine.cpp here). Tests that steer or count what the stand-in does include its own header and
// are in the first program only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::test {

/// Whether cards are imitated: no speed, and memory in the small.
bool on_standin();

/// GPUs of the machine, whatever number of logical devices they are split in.
int gpu_count();

/// For a backend that is made afterwards: a machine that shows so many CUDA devices or more. Logical ones, on cards.
void start_with_devices(int count);

/// What CUDA has refused, or let through although it is wrong, since the last call. Of cards: errors left unread.
std::vector<std::string> take_mistakes();

/// Fails the test for every such mistake and where several threads have called CUDA, which cards don't tell.
void check_no_mistakes();

/// Lets every piece of work begin up to so many microseconds late. Cards have delays of their own.
void set_delays(std::uint64_t seed, int longest_us);

/// GPUs on which this process has a context, with the call that made it where that is known.
std::map<int, std::string> contexts();

/// Whether this is host memory that CUDA has pinned.
bool is_pinned(const void* memory);

/// Called by what a stream runs: enqueues to[i] = from[i] + 1.
void add_one(const Launch& launch, int* to, const int* from, std::int64_t n);
/// The same: enqueues a write to an address where there is no memory, by which the context is lost.
void write_nowhere(const Launch& launch);
/// Lets a stream of `device` run `write_nowhere`.
void lose_context(Device device);

/// Prints "skipped: CASE: WHY" for a test case that can't be run here.
void skipped(const std::string& why);

}  // namespace lockstep::test
