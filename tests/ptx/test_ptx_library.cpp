// The library's kernels, launched with parameters that are laid out here: block-wide reductions, which no shape of the
// op table reaches, and others at the edges of warps and blocks, in every schedule and with few blocks.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ptx/library_kernels.h"

using namespace lockstep::ptx;

namespace {

LibraryKernels& kernels() {
    static LibraryKernels all(PTX_FILES);
    return all;
}

/// An index of dimensions that are added from the outermost inwards.
template <int N>
struct Index : lockstep::cuda::StridedIndex<N> {
    Index& dimension(std::int64_t size, const std::array<std::int64_t, N>& of) {
        const int place = this->dims == 0 ? 0 : 1;
        for (int d = this->dims++; d > place; --d) {
            this->sizes[d] = this->sizes[d - 1];
            this->divisors[d] = this->divisors[d - 1];
            for (auto& own : this->strides) own[d] = own[d - 1];
        }
        this->count *= size;
        this->sizes[place] = size;
        this->divisors[place] = lockstep::cuda::Divisor(static_cast<std::uint32_t>(size));
        for (std::size_t t = 0; t < N; ++t) this->strides[t][place] = of[t];
        return *this;
    }
};

/// ops/cuda/map.h
template <int N>
struct MapElements {
    void* y;
    const void* x[N - 1];
    std::uint8_t more = 0;  ///< the function, or a dtype
    Index<N> index = {};
};

/// ops/cuda/reduce.h
struct Plan {
    std::int64_t outputs, count;
    int lanes, parts, columns = 0;
};

struct Parts {
    double* results;
    unsigned* stored;
};

/// ops/cuda/reductions.cu
template <class T>
struct SumElements {
    Index<2> kept;
    Index<1> reduced;
    std::int64_t y_step;
    const T* x;
    bool aligned;
    T* y;
};

template <class T>
LibraryKernels::Allocation all_of(const std::vector<T>& values) {
    return {values.data(), values.size() * sizeof(T)};
}

LibraryKernels::Allocations listed(const std::vector<LibraryKernels::Allocation>& all) {
    return std::make_shared<const std::vector<LibraryKernels::Allocation>>(all);
}

constexpr int block_threads = 256;

LaunchOptions blocks_of(std::int64_t work, std::int64_t most_blocks, const Schedule& schedule) {
    LaunchOptions options;
    options.grid.x = static_cast<unsigned>(std::min((work + block_threads - 1) / block_threads, most_blocks));
    options.block.x = static_cast<unsigned>(block_threads);
    options.schedule = schedule;
    return options;
}

template <class... Arguments>
void run(const std::vector<std::string>& words, const LaunchOptions& options,
         const std::vector<LibraryKernels::Allocation>& allocations, const Arguments&... arguments) {
    const LibraryKernels::Found found = kernels().find_by_words(words);
    const Report report =
        kernels().launch(found, parameters(*found.kernel, arguments...), options, listed(allocations));
    for (const Fault& each : report.faults) FAIL_CHECK(each.message);
}

std::vector<float> uneven(std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] =
            static_cast<float>(std::sin(static_cast<double>(i * 37 + 5)) * std::pow(10.0, static_cast<double>(i % 5)));
    return values;
}

/// Runs in every schedule with many blocks and with few; all results have the bits of the first.
template <class T, class Run>
std::vector<T> same_in_all_schedules(std::size_t results, Run run_with) {
    std::vector<T> first;
    for (const Schedule& schedule : schedules)
        for (const std::int64_t most_blocks : {16384, 3, 1}) {
            INFO(schedule.name << ", at most " << most_blocks << " blocks");
            std::vector<T> result(results);
            run_with(result, schedule, most_blocks);
            if (first.empty()) first = result;
            CHECK(std::memcmp(first.data(), result.data(), results * sizeof(T)) == 0);
        }
    return first;
}

}  // namespace

TEST_CASE("every instruction of the library's kernels is known") {
    CHECK(kernels().kernel_count() > 300);
    CHECK(kernels().unknown() == std::vector<std::string>());
}

TEST_CASE("names of kernels do not depend on how a file was compiled") {
    CHECK(without_hashes("_ZN2ab46_GLOBAL__N__08d5abae_13_optimizers_cu_61211f327ReadRowIdEEvT_l") ==
          without_hashes("_ZN2ab46_GLOBAL__N__0123abcd_13_optimizers_cu_89abcdef7ReadRowIdEEvT_l"));
    CHECK(without_hashes("_ZN2ab46_GLOBAL__N__08d5abae_13_optimizers_cu_61211f327ReadRowIdEEvT_l") !=
          without_hashes("_ZN2ab40_GLOBAL__N__08d5abae_7_copy_cu_61211f327ReadRowIdEEvT_l"));
}

TEST_CASE("sums by warps and by blocks, in one part and in several") {
    const int lanes = GENERATE(32, 256);
    const std::int64_t outputs = GENERATE(1, 3, 17);
    const std::int64_t count = GENERATE(1, 33, 255, 2049, 5000);
    const int parts = GENERATE(1, 3);
    CAPTURE(lanes, outputs, count, parts);
    const std::vector<float> x = uneven(static_cast<std::size_t>(outputs * count));
    const auto sums = same_in_all_schedules<float>(
        static_cast<std::size_t>(outputs),
        [&](std::vector<float>& y, const Schedule& schedule, std::int64_t most_blocks) {
            std::vector<double> results(static_cast<std::size_t>(outputs * parts));
            std::vector<unsigned> stored(static_cast<std::size_t>(outputs));
            SumElements<float> sum{{}, {}, 1, x.data(), true, y.data()};
            sum.kept.dimension(outputs, {count, 1});
            sum.reduced.dimension(count, {1});
            const std::vector<LibraryKernels::Allocation> memory{all_of(x), all_of(y), all_of(results), all_of(stored)};
            const Plan plan{outputs, count, lanes, parts};
            const Parts of_parts{results.data(), stored.data()};
            run({lanes == 32 ? "reduce_jobsILi32E" : "reduce_jobsILi256E", "11SumElementsIfLi1ELb0EEEEEvT0_"},
                blocks_of(outputs * parts * lanes, most_blocks, schedule), memory, sum, plan, of_parts);
            CHECK(stored == std::vector<unsigned>(stored.size()));
        });
    for (std::size_t i = 0; i < sums.size(); ++i) {
        double expected = 0, magnitude = 0;
        for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
            const auto value = static_cast<double>(x[i * static_cast<std::size_t>(count) + k]);
            expected += value;
            magnitude += std::fabs(value);
        }
        CHECK(std::fabs(static_cast<double>(sums[i]) - expected) <= std::fabs(expected) * 0x1p-24 + magnitude * 1e-13);
    }
}

TEST_CASE("sums over shards follow the tree") {
    const int shards = GENERATE(1, 2, 3, 4, 7, 8, 33, 64);
    const bool aligned = GENERATE(true, false);
    CAPTURE(shards, aligned);
    std::vector<std::vector<float>> x;
    for (int s = 0; s < shards; ++s) {
        x.push_back(uneven(300));
        for (float& each : x.back()) each *= static_cast<float>(s * s + 1) * 0.37f;
    }
    const auto sums = same_in_all_schedules<float>(
        300, [&](std::vector<float>& y, const Schedule& schedule, std::int64_t most_blocks) {
            struct {
                const float* of[64];
                int size;
                float* out;
                std::int64_t elements = 300;
                bool accumulate = false;
                const void* agreed = nullptr;
                bool aligned;
            } sum{};
            sum.size = shards;
            sum.out = y.data();
            sum.aligned = aligned;
            std::vector<LibraryKernels::Allocation> memory{all_of(y)};
            for (std::size_t s = 0; s < x.size(); ++s) {
                sum.of[s] = x[s].data();
                memory.push_back(all_of(x[s]));
            }
            const bool unrolled = shards == 1 || shards == 2 || shards == 4 || shards == 8;
            const std::int64_t chunks = 75;
            run({"run_functor", fmt::format("10SumTensorsIfLi{}EEE", unrolled ? shards : 0)},
                blocks_of(chunks, most_blocks, schedule), memory, sum, chunks);
        });
    const auto tree = [&](auto& self, std::size_t element, std::size_t begin, std::size_t end) -> float {
        if (end - begin == 1) return x[begin][element];
        std::size_t half = 1;
        while (half * 2 < end - begin) half *= 2;
        return self(self, element, begin, begin + half) + self(self, element, begin + half, end);
    };
    for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == tree(tree, i, 0, x.size()));
}

TEST_CASE("elementwise kernels with strides, and conversions") {
    const bool narrow = GENERATE(true, false);
    const std::int64_t rows = 37, columns = 29;
    const std::vector<float> a = uneven(37 * 29), b = uneven(29);
    // y = a transposed plus a row of b for every one of its columns.
    const auto sums = same_in_all_schedules<float>(a.size(), [&](std::vector<float>& y, const Schedule& schedule,
                                                                 std::int64_t most_blocks) {
        MapElements<3> add{y.data(), {a.data(), b.data()}};
        add.index.dimension(columns, {rows, 1, 1}).dimension(rows, {1, columns, 0});
        add.index.narrow = narrow;
        run({"run_functor", "11MapElementsIffLi3E", "functor3AddE"}, blocks_of(add.index.count, most_blocks, schedule),
            {all_of(y), all_of(a), all_of(b)}, add, add.index.count);
    });
    const auto transposed = [&](std::size_t i) { return i % 37 * 29 + i / 37; };
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(sums[i] == a[transposed(i)] + b[i / 37]);
    const auto shortened = same_in_all_schedules<std::uint16_t>(
        a.size(), [&](std::vector<std::uint16_t>& y, const Schedule& schedule, std::int64_t most_blocks) {
            MapElements<2> convert{y.data(), {a.data()}};  // from f32
            convert.index.dimension(columns, {rows, 1}).dimension(rows, {1, columns});
            run({"run_functor", "15ConvertElementsINS_8BFloat16EE"},
                blocks_of(convert.index.count, most_blocks, schedule), {all_of(y), all_of(a)}, convert,
                convert.index.count);
        });
    for (std::size_t i = 0; i < a.size(); ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(a[transposed(i)]);
        CHECK(shortened[i] == static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
    }
}

TEST_CASE("faults in the library's reduction are found") {
    const std::int64_t outputs = 3, count = 5000;
    const std::vector<float> x = uneven(static_cast<std::size_t>(outputs * count));
    const auto faults = [&](const std::string& path, const Schedule& schedule, int parts) {
        LibraryKernels compiled(path);
        std::vector<float> y(static_cast<std::size_t>(outputs));
        struct {
            const float* x;
            float* y;
            std::int64_t count;
        } const sum{x.data(), y.data(), count};
        std::vector<double> results(static_cast<std::size_t>(outputs * parts));
        std::vector<unsigned> stored(static_cast<std::size_t>(outputs));
        const LibraryKernels::Found found = compiled.find_by_words({"reduce_jobs"});
        return compiled
            .launch(found,
                    parameters(*found.kernel, sum, Plan{outputs, count, block_threads, parts},
                               Parts{results.data(), stored.data()}),
                    blocks_of(parts * block_threads, 2, schedule),
                    listed({all_of(x), all_of(y), all_of(results), all_of(stored)}))
            .faults;
    };
    for (const Schedule& schedule : schedules) {
        INFO(schedule.name);
        for (const int parts : {1, 3})
            for (const Fault& each : faults(PTX_block_sum, schedule, parts)) FAIL_CHECK(each.message);
        const auto first = [&](const char* path, int parts) {
            const auto all = faults(path, schedule, parts);
            return all.empty() ? std::string("nothing found") : all.front().message;
        };
        CHECK(first(PTX_no_barrier, 1).find("race: shared memory is ") == 0);
        CHECK(first(PTX_all_lanes_store, 1).find("race: global memory is written while another thread writes it") == 0);
        CHECK(first(PTX_one_too_many, 1).find("out of bounds: read of 4 bytes") == 0);
        CHECK(first(PTX_no_fence, 3).find("race: global memory is read while another thread writes it") == 0);
    }
}
