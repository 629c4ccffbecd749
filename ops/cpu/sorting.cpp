// ArgSort: a stable radix sort of every line. ArgTop: the same, or a selection if few positions are needed.
#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/lines.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/order_keys.h"
#include "lockstep/ops/internal/sorting_operations.h"
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

/// Entries that a selection of `count` ones among `size` holds at a time.
std::int64_t selection_entries(std::int64_t count, std::int64_t size) {
    return std::min(std::max<std::int64_t>(2 * count, 64), size);
}

/// Collects the first `count` of `size` entries in order. key(i) ascends with the order; of equal ones, the earlier is
/// first.
template <class Key, class MakeKey>
void select_first(Entry<Key>* entries, std::int64_t count, std::int64_t size, const MakeKey& key) {
    const auto before = [](const Entry<Key>& a, const Entry<Key>& b) {
        return a.key != b.key ? a.key < b.key : a.place < b.place;
    };
    const std::int64_t room = selection_entries(count, size);
    std::int64_t found = 0;
    Key last = static_cast<Key>(-1);  // the largest key of the first `count` entries, if `full`
    bool full = false;
    const auto add = [&](Key next, std::int64_t i) {
        if (full && next >= last) return;
        if (found == room) {
            std::nth_element(entries, entries + count - 1, entries + found, before);
            found = count;
            last = entries[count - 1].key;
            full = true;
            if (next >= last) return;
        }
        entries[found++] = {next, static_cast<Key>(i)};
    };
    constexpr std::int64_t together = 32;
    for (std::int64_t first = 0; first < size; first += together) {
        const std::int64_t some = std::min(together, size - first);
        std::array<Key, together> keys;
        for (std::int64_t i = 0; i < some; ++i) keys[static_cast<std::size_t>(i)] = key(first + i);
        bool any = !full;
        for (std::int64_t i = 0; i < some; ++i) any |= keys[static_cast<std::size_t>(i)] < last;
        for (std::int64_t i = 0; any && i < some; ++i) add(keys[static_cast<std::size_t>(i)], first + i);
    }
    std::nth_element(entries, entries + count - 1, entries + found, before);
    std::sort(entries, entries + count, before);
}

/// Positions of the first `count` elements of every line in order.
template <class Op>
std::unique_ptr<Kernel> make_order(const Op& operation, std::int64_t count, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const Lines all(request.in[0].shape, operation.dim);
    const std::int64_t size = all.size, inner = all.inner, lines = all.count();
    const bool selects = 8 * count <= size;
    const auto make = [&](auto zero) {
        using T = decltype(zero);
        using Key = element::OrderKey<T>;
        const std::int64_t passes = selects ? 2 : 8;  // cost of an element in simple ones
        const int threads = worthwhile_threads(request.threads, passes * lines * size);
        const std::int64_t room = selects ? selection_entries(count, size) : 2 * size;
        return make_kernel(
            [=, descending = operation.descending](const KernelArgs& call) {
                const T* const x = call.input<T>(0);
                auto* const y = call.output<std::int64_t>(0);
                auto* const scratch = static_cast<Entry<Key>*>(call.scratch);
                const auto order_line = [&](std::int64_t line, Entry<Key>* entries) {
                    const std::int64_t first = all.first(line);
                    const auto key = [=](std::int64_t i) {
                        return element::order_key(x[first + i * inner], descending);
                    };
                    constexpr std::int64_t few = 48;
                    const Entry<Key>* ordered = entries;
                    if (selects) {
                        if (count > 0) select_first(entries, count, size, key);
                    } else {
                        for (std::int64_t i = 0; i < size; ++i) entries[i] = {key(i), static_cast<Key>(i)};
                        if (size <= few)
                            insertion_sort(entries, size);
                        else
                            ordered = radix_sort(entries, entries + size, size);
                    }
                    for (std::int64_t i = 0; i < count; ++i)
                        y[first + i * inner] = static_cast<std::int64_t>(ordered[i].place);
                };
                for_parts(threads, threads, 1, [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t thread = begin; thread < end; ++thread)
                        for (std::int64_t line = thread * lines / threads; line < (thread + 1) * lines / threads;
                             ++line)
                            order_line(line, scratch + thread * room);
                });
            },
            static_cast<std::size_t>(threads * room) * sizeof(Entry<Key>));
    };
    const DType dtype = request.in[0].dtype;
    return dtype == DType::i64 ? make(std::int64_t{}) : for_floating(operation, dtype, make);
}

std::unique_ptr<Kernel> make_argsort(const ArgSort& operation, KernelRequest& request) {
    return make_order(operation, request.in[0].shape[operation.dim], request);
}
std::unique_ptr<Kernel> make_argtop(const ArgTop& operation, KernelRequest& request) {
    return make_order(operation, operation.count, request);
}

}  // namespace

void add_sorting_kernels(KernelTable& table) {
    table.add<ArgSort, make_argsort>();
    table.add<ArgTop, make_argtop>();
}

}  // namespace lockstep::cpu
