// ArgSort: a stable radix sort of every line.
#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/lines.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/order_keys.h"
#include "lockstep/ops/internal/tensor_operations.h"

namespace lockstep::cpu {
namespace {

template <class Key>
struct Entry {
    Key key;
    Key place;  // as large as the key: entries have no padding
};

/// For few entries.
template <class Key>
void insertion_sort(Entry<Key>* entries, std::int64_t count) {
    for (std::int64_t i = 1; i < count; ++i) {
        const Entry<Key> entry = entries[i];
        std::int64_t to = i;
        for (; to > 0 && entry.key < entries[to - 1].key; --to) entries[to] = entries[to - 1];
        entries[to] = entry;
    }
}

/// Sorts by the bytes of the keys, the lowest one first. Returns where the result is: `entries` or `other`.
template <class Key>
Entry<Key>* radix_sort(Entry<Key>* entries, Entry<Key>* other, std::int64_t count) {
    constexpr std::size_t digits = sizeof(Key);
    std::array<std::array<std::int64_t, 256>, digits> begin{};
    for (std::int64_t i = 0; i < count; ++i)
        for (std::size_t digit = 0; digit < digits; ++digit) ++begin[digit][entries[i].key >> (8 * digit) & 0xff];
    for (std::size_t digit = 0; digit < digits; ++digit) {
        std::int64_t next = 0;
        bool one_value = false;
        for (std::int64_t& place : begin[digit]) {
            one_value = one_value || place == count;
            next += std::exchange(place, next);
        }
        if (one_value) continue;
        for (std::int64_t i = 0; i < count; ++i)
            other[begin[digit][entries[i].key >> (8 * digit) & 0xff]++] = entries[i];
        std::swap(entries, other);
    }
    return entries;
}

std::unique_ptr<Kernel> make_argsort(const ArgSort& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const Lines all(request.in[0].shape, operation.dim);
    const std::int64_t size = all.size, inner = all.inner, lines = all.count();
    const auto make = [&](auto zero) {
        using T = decltype(zero);
        using Key = element::OrderKey<T>;
        constexpr std::int64_t passes = 8;  // cost of an element in simple ones
        const int threads = worthwhile_threads(request.threads, passes * lines * size);
        return make_kernel(
            [=, descending = operation.descending](const KernelArgs& call) {
                const T* const x = call.input<T>(0);
                auto* const y = call.output<std::int64_t>(0);
                auto* const scratch = static_cast<Entry<Key>*>(call.scratch);
                const auto sort_line = [&](std::int64_t line, Entry<Key>* entries) {
                    const std::int64_t first = all.first(line);
                    for (std::int64_t i = 0; i < size; ++i)
                        entries[i] = {element::order_key(x[first + i * inner], descending), static_cast<Key>(i)};
                    constexpr std::int64_t few = 48;
                    const Entry<Key>* sorted = entries;
                    if (size <= few)
                        insertion_sort(entries, size);
                    else
                        sorted = radix_sort(entries, entries + size, size);
                    for (std::int64_t i = 0; i < size; ++i)
                        y[first + i * inner] = static_cast<std::int64_t>(sorted[i].place);
                };
                for_parts(threads, threads, 1, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t thread = begin; thread < end; ++thread)
                        for (std::int64_t line = thread * lines / threads; line < (thread + 1) * lines / threads;
                             ++line)
                            sort_line(line, scratch + thread * 2 * size);
                });
            },
            static_cast<std::size_t>(threads) * 2 * static_cast<std::size_t>(size) * sizeof(Entry<Key>));
    };
    const DType dtype = request.in[0].dtype;
    return dtype == DType::i64 ? make(std::int64_t{}) : for_floating(operation, dtype, make);
}

}  // namespace

void add_sorting_kernels(KernelTable& table) { table.add<ArgSort, make_argsort>(); }

}  // namespace lockstep::cpu
