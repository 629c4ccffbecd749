// Inspection of a tensor's values.
#include <algorithm>

#include "lockstep/ops/cpu/chunks.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

std::unique_ptr<Kernel> make_isfinite(const IsFinite& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements = request.in[0].numel(), threads = request.threads](const KernelArgs& call) {
            const T* x = call.input<T>(0);
            bool* y = call.output<bool>(0);
            for_element_parts(threads, elements, [=](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) y[i] = x[i] - x[i] == T(0);
            });
        });
    });
}

std::unique_ptr<Kernel> make_histogram(const CountInBins& operation, KernelRequest& request) {
    request.want_all_contiguous();
    const std::int64_t elements = request.in[0].numel(), bins = request.out[0].numel();
    const std::int64_t chunks = chunk_count(elements);
    // The counts of every thread except the first, then the summaries of all chunks.
    const int workers = worthwhile_threads(request.threads, elements);
    const std::size_t own_counts = static_cast<std::size_t>((workers - 1) * bins) * sizeof(std::int64_t);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [=](const KernelArgs& call) {
                const T* x = call.input<T>(0);
                const auto* edges = call.input<double>(1);
                auto* const counts = call.output<std::int64_t>(0);
                auto* const others = static_cast<std::int64_t*>(call.scratch);
                auto* const summaries = reinterpret_cast<ValueSummary*>(static_cast<char*>(call.scratch) + own_counts);
                for_parts(workers, workers, 1, [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t worker = first; worker < last; ++worker) {
                        std::int64_t* const own = worker == 0 ? counts : others + (worker - 1) * bins;
                        std::fill_n(own, bins, std::int64_t{0});
                        const std::int64_t end = chunks * (worker + 1) / workers;
                        for (std::int64_t chunk = chunks * worker / workers; chunk < end; ++chunk) {
                            ValueSummary summary{};
                            const std::int64_t stop = std::min<std::int64_t>(elements, (chunk + 1) * chunk_elements);
                            for (std::int64_t i = chunk * chunk_elements; i < stop; ++i) {
                                const auto value = static_cast<double>(x[i]);
                                element::add_value(summary, value);
                                const std::int64_t bin = element::bin_of(edges, bins, value);
                                if (bin >= 0) ++own[bin];
                            }
                            summaries[chunk] = summary;
                        }
                    }
                });
                for (std::int64_t i = 0; i < (workers - 1) * bins; ++i) counts[i % bins] += others[i];
                ValueSummary all{};
                for (std::int64_t chunk = 0; chunk < chunks; ++chunk) element::join_values(all, summaries[chunk]);
                *call.output<ValueSummary>(1) = all;
            },
            own_counts + static_cast<std::size_t>(chunks) * sizeof(ValueSummary));
    });
}

}  // namespace

void add_statistics_kernels(KernelTable& table) {
    table.add<IsFinite, make_isfinite>();
    table.add<CountInBins, make_histogram>();
}

}  // namespace lockstep::cpu
