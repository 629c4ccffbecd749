// The machine of a test of the CUDA backend: the stand-in or GPUs. One source is built to two programs: test_x is
// linked with the stand-in and its implementation of this header (cuda_standin/machine.cpp), test_x_gpu with the CUDA
// libraries and the other implementation (machine.cpp here). Tests that control the stand-in or use its counters
// include its own header and are part of the first program only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::test {

/// Whether the stand-in imitates GPUs, with little memory and low speed.
bool on_standin();

/// Number of GPUs of the machine, not of logical devices.
int gpu_count();

/// Makes at least `count` CUDA devices visible to a backend created later; logical devices on GPUs.
void start_with_devices(int count);

/// Wrong CUDA calls since the last call, rejected or not. On GPUs: unread errors.
std::vector<std::string> take_mistakes();

/// Fails the test for every such mistake and, on the stand-in, if several threads called CUDA.
void check_no_mistakes();

/// Delays every piece of work by up to `longest_us`. No effect on GPUs, which have their own delays.
void set_delays(std::uint64_t seed, int longest_us);

/// GPUs on which this process has a context, with the call that made it if known.
std::map<int, std::string> contexts();

/// Whether this is host memory pinned by CUDA.
bool is_pinned(const void* memory);

/// Enqueues to[i] = from[i] + 1. Call it in work of a stream.
void add_one(const ExecContext& context, int* to, const int* from, std::int64_t n);
/// Enqueues a write to an invalid address, which loses the context. Call it in work of a stream.
void write_nowhere(const ExecContext& context);
/// Runs `write_nowhere` on a stream of `device`.
void lose_context(Device device);

/// Prints "skipped: CASE: WHY" for a test case that cannot run here.
void skipped(const std::string& why);

}  // namespace lockstep::test
