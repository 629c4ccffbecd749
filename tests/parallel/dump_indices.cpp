// Prints the rows that samplers choose, for tests/pytorch/check_sampler.py: each line of input is a case, each line of
// output its rows. "sampler LENGTH REPLICAS RANK SEED EPOCH SHUFFLE DROP_LAST" or "partition LENGTH SEED".
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "lockstep/parallel/data/sampler.h"

namespace ls = lockstep;

namespace {

std::vector<std::int64_t> rows_of(std::istringstream& words) {
    std::string kind;
    std::int64_t length = 0, epoch = 0;
    std::uint64_t seed = 0;
    words >> kind >> length;
    if (kind == "partition") {
        words >> seed;
        return ls::DataPartitioner(length, {1.0}, seed).part(0);
    }
    int replicas = 0, rank = 0;
    ls::DistributedSamplerOptions options;
    words >> replicas >> rank >> options.seed >> epoch >> options.shuffle >> options.drop_last;
    ls::DistributedSampler sampler(length, replicas, rank, options);
    sampler.set_epoch(epoch);
    return sampler.indices();
}

}  // namespace

int main() {
    try {
        for (std::string line; std::getline(std::cin, line);) {
            std::istringstream words(line);
            for (const std::int64_t row : rows_of(words)) std::cout << row << ' ';
            std::cout << std::endl;
        }
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_indices: %s\n", error.what());
        return 1;
    }
}
