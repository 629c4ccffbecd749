// Prints the rows that samplers choose, for tests/pytorch/check_sampler.py: each line of input is a case, each line of
// output its rows. "sampler LENGTH REPLICAS RANK SEED EPOCH SHUFFLE DROP_LAST", "partition LENGTH SEED",
// "random LENGTH SEED REPLACEMENT SAMPLES", "weighted SEED SAMPLES WEIGHTS...", "lengths SEED LENGTHS..." or
// "fractions LENGTH SEED FRACTIONS...", whose parts are separated by -1.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/parallel/data/sampler.h"
#include "lockstep/parallel/data/subset.h"
#include "lockstep/samples/data/data_partitioner.h"

namespace ls = lockstep;

namespace {

struct Numbers {
    std::int64_t rows = 0;
    std::int64_t size() const { return rows; }
    std::tuple<ls::Tensor> get(std::int64_t row) const { return {ls::Tensor::scalar(static_cast<double>(row))}; }
};

template <class Number>
std::vector<Number> rest_of(std::istringstream& words) {
    return {std::istream_iterator<Number>(words), std::istream_iterator<Number>()};
}

template <class Number>
std::vector<std::int64_t> split_rows(std::int64_t length, const std::vector<Number>& lengths, std::uint64_t seed) {
    std::vector<std::int64_t> rows;
    for (const auto& part : ls::random_split(Numbers{length}, lengths, seed)) {
        rows.insert(rows.end(), part.indices().begin(), part.indices().end());
        rows.push_back(-1);
    }
    return rows;
}

std::vector<std::int64_t> rows_of(std::istringstream& words) {
    std::string kind;
    std::int64_t length = 0, epoch = 0;
    std::uint64_t seed = 0;
    words >> kind;
    if (kind == "lengths") {
        words >> seed;
        const auto lengths = rest_of<std::int64_t>(words);
        return split_rows(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), lengths, seed);
    }
    if (kind == "weighted") {
        std::int64_t samples = 0;
        words >> seed >> samples;
        return ls::WeightedRandomSampler(rest_of<double>(words), samples, {.seed = seed}).indices(0);
    }
    words >> length;
    if (kind == "fractions") {
        words >> seed;
        return split_rows(length, rest_of<double>(words), seed);
    }
    if (kind == "random") {
        ls::RandomSamplerOptions options;
        std::int64_t samples = 0;
        words >> options.seed >> options.replacement >> samples;
        options.num_samples = samples;
        return ls::RandomSampler(length, options).indices(0);
    }
    if (kind == "partition") {
        words >> seed;
        return samples::DataPartitioner(length, {1.0}, seed).part(0);
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
