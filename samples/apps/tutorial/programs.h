// The programs of PyTorch's tutorial "Writing Distributed Applications", one function each; every rank calls it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/runtime/tensor.h"

namespace tutorial {

/// Prints one line in one write, because the ranks share their output.
template <class... Arguments>
void say(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    const std::string line = fmt::format(text, std::forward<Arguments>(arguments)...) + '\n';
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
}

void blocking_messages(lockstep::ProcessGroup& group);
void non_blocking_messages(lockstep::ProcessGroup& group);

void all_reduce(lockstep::ProcessGroup& group);
void reduce(lockstep::ProcessGroup& group);
void broadcast(lockstep::ProcessGroup& group);
void scatter(lockstep::ProcessGroup& group);
void gather(lockstep::ProcessGroup& group);
void all_gather(lockstep::ProcessGroup& group);
void reduce_scatter(lockstep::ProcessGroup& group);
void all_to_all(lockstep::ProcessGroup& group);
void barrier(lockstep::ProcessGroup& group);
/// An all-reduce written from isend and recv.
void ring(lockstep::ProcessGroup& group);

struct Training {
    std::filesystem::path data = "data/digits";
    std::int64_t epochs = 10;
    std::uint64_t seed = 1234;
};
/// The network `small` on a part of the data for each rank, global batch 128, gradients averaged by hand.
void train(lockstep::ProcessGroup& group, const Training& training);

}  // namespace tutorial
