#include "lockstep/tests/parallel/comm/group_exercise.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/exercise_data.h"

namespace lockstep::test {

namespace {

/// Memory layout of a tensor of n elements.
enum class MemoryLayout { plain, strided, device, strided_on_device };

Bytes bytes_of(const Tensor& tensor) {
    const Tensor host = tensor.to(Device::host()).contiguous();
    Bytes bytes(static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype()));
    visit_dtype(tensor.dtype(), [&](auto element) {
        if (!bytes.empty()) std::memcpy(bytes.data(), host.data<const decltype(element)>(), bytes.size());
    });
    return bytes;
}

Tensor plain_tensor(const Bytes& bytes, DType dtype, const Shape& shape) {
    const Tensor tensor = Tensor::empty(shape, dtype);
    visit_dtype(dtype, [&](auto element) {
        if (!bytes.empty()) std::memcpy(tensor.data<decltype(element)>(), bytes.data(), bytes.size());
    });
    return tensor;
}

Tensor tensor_of(const Bytes& bytes, DType dtype, const Shape& shape, MemoryLayout layout = MemoryLayout::plain,
                 Device device = Device::host()) {
    const Tensor plain = plain_tensor(bytes, dtype, shape);
    if (layout == MemoryLayout::plain) return plain;
    if (layout == MemoryLayout::device) return plain.to(device);
    Shape wide = shape;  // every second column of a wider one
    wide.push_back(2);
    const Tensor target = Tensor::zeros(wide, dtype, layout == MemoryLayout::strided ? Device::host() : device)
                              .select(wide.dims() - 1, 1);
    target.copy_(plain);
    return target;
}

class Exercise {
public:
    Exercise(ProcessGroup& group, Device device)
        : group_(group), device_(device), rank_(group.rank()), size_(group.size()) {}

    std::vector<std::string> run() {
        try {
            for (const DType dtype :
                 {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean})
                visit_dtype(dtype, [&](auto element) {
                    reductions<decltype(element)>();
                    moves<decltype(element)>();
                });
            for (const MemoryLayout layout :
                 {MemoryLayout::strided, MemoryLayout::device, MemoryLayout::strided_on_device})
                layouts(layout);
            means();
            uneven();
            asynchronous();
            asynchronous_of_each_kind();
            group_.monitored_barrier(test::no_limit);
            group_.barrier();
        } catch (const Error& error) {
            failures_.require(false, std::string("threw: ") + error.what());
        }
        return failures_.lines();
    }

private:
    template <class Same>
    void check(const std::string& what, const Tensor& tensor, const Same& expected) {
        failures_.require(bytes_of(tensor) == expected, what + ": wrong values in rank " + std::to_string(rank_));
    }
    static std::vector<std::size_t> counts(std::size_t element) { return {0, 1, 1003, large / element}; }
    static Shape flat(std::size_t count) { return {static_cast<std::int64_t>(count)}; }
    std::size_t ranks() const { return static_cast<std::size_t>(size_); }
    std::size_t own() const { return static_cast<std::size_t>(rank_); }

    template <class T>
    void reductions() {
        constexpr DType dtype = dtype_of<T>;
        for (const std::size_t count : counts(sizeof(T)))
            for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
                if (count > 2000 && op != ReduceOp::sum) continue;
                const std::string what =
                    std::string(name_of(dtype)) + " " + text_of(op) + " of " + std::to_string(count);
                const int root = static_cast<int>(count) % size_;
                const Bytes mine = elements<T>(op, rank_, 0, count), expected = reduced<T>(op, size_, 0, count);
                const Tensor all = tensor_of(mine, dtype, flat(count));
                group_.all_reduce(all, op);
                check("all_reduce " + what, all, expected);
                const Tensor one = tensor_of(mine, dtype, flat(count));
                group_.reduce(one, root, op);
                check("reduce " + what, one, rank_ == root ? expected : mine);
                const Tensor whole = tensor_of(elements<T>(op, rank_, 0, count * ranks()), dtype,
                                               {size_, static_cast<std::int64_t>(count)});
                const Tensor part = Tensor::empty(flat(count), dtype);
                group_.reduce_scatter(part, whole, op);
                check("reduce_scatter " + what, part, reduced<T>(op, size_, own() * count, count));
            }
    }

    template <class T>
    void moves() {
        constexpr DType dtype = dtype_of<T>;
        const auto data = [](int from, int to, std::size_t count) {
            // 0 and 1 are also values of booleans
            Bytes bytes = sent_bytes(count, from, to, count * sizeof(T));
            for (auto& byte : bytes) byte &= 1;
            return bytes;
        };
        for (const std::size_t count : counts(sizeof(T))) {
            const std::string what = std::string(name_of(dtype)) + " of " + std::to_string(count);
            const int root = static_cast<int>(count) % size_;
            const auto joined = flat(count * ranks());
            Bytes all, to_all, from_all;
            for (int r = 0; r < size_; ++r) {
                for (const auto& [list, bytes] : {std::pair{&all, data(r, 0, count)},
                                                  {&to_all, data(rank_, r, count)},
                                                  {&from_all, data(r, rank_, count)}})
                    list->insert(list->end(), bytes.begin(), bytes.end());
            }
            const Tensor tensor =
                tensor_of(rank_ == root ? data(root, 0, count) : Bytes(count * sizeof(T)), dtype, flat(count));
            group_.broadcast(tensor, root);
            check("broadcast " + what, tensor, data(root, 0, count));

            const Tensor mine = tensor_of(data(rank_, 0, count), dtype, flat(count));
            const Tensor gathered = Tensor::empty(joined, dtype);
            group_.all_gather(gathered, mine);
            check("all_gather " + what, gathered, all);
            const Tensor stacked = Tensor::zeros({size_, static_cast<std::int64_t>(count)}, dtype);
            stacked.select(0, rank_).copy_(mine);
            group_.all_gather(stacked, stacked.select(0, rank_));
            check("all_gather in place " + what, stacked, all);

            std::vector<Tensor> list;
            for (int r = 0; rank_ == root && r < size_; ++r) list.push_back(Tensor::empty(flat(count), dtype));
            group_.gather(mine, list, root);
            for (int r = 0; r < static_cast<int>(list.size()); ++r)
                check("gather " + what, list[static_cast<std::size_t>(r)], data(r, 0, count));
            for (int r = 0; r < static_cast<int>(list.size()); ++r)
                list[static_cast<std::size_t>(r)] = tensor_of(data(root, r, count), dtype, flat(count));
            const Tensor scattered = Tensor::empty(flat(count), dtype);
            group_.scatter(scattered, list, root);
            check("scatter " + what, scattered, data(root, rank_, count));

            const Tensor received = Tensor::empty(joined, dtype);
            group_.all_to_all(received, tensor_of(to_all, dtype, joined));
            check("all_to_all " + what, received, from_all);
        }
    }

    /// Tensors that are not plain ranges of host memory.
    void layouts(MemoryLayout layout) {
        const std::string where = layout == MemoryLayout::strided  ? ", strided"
                                  : layout == MemoryLayout::device ? " on " + device_.str()
                                                                   : ", strided on " + device_.str();
        const Shape shape{17, 5, 3};
        constexpr std::size_t count = 17 * 5 * 3;
        const Tensor sum =
            tensor_of(elements<float>(ReduceOp::sum, rank_, 0, count), DType::f32, shape, layout, device_);
        const auto version = sum.version();
        group_.all_reduce(sum);
        check("all_reduce" + where, sum, reduced<float>(ReduceOp::sum, size_, 0, count));
        failures_.require(sum.version() > version, "all_reduce does not count as a write" + where);

        Bytes all;
        for (int r = 0; r < size_; ++r) {
            const Bytes part = elements<float>(ReduceOp::sum, r, 0, count);
            all.insert(all.end(), part.begin(), part.end());
        }
        Shape wide = shape;
        wide.insert(0, size_);
        const Tensor out = tensor_of(Bytes(all.size()), DType::f32, wide, layout, device_);
        const Tensor in =
            tensor_of(elements<float>(ReduceOp::sum, rank_, 0, count), DType::f32, shape, layout, device_);
        const auto read = in.version();
        group_.all_gather_async(out, in).wait();
        check("all_gather" + where, out, all);
        failures_.require(in.version() == read, "all_gather counts as a write of its input" + where);
        // The group waits for pending work of the tensor's device, and later work reads the result.
        const Tensor twice = in + in;
        group_.broadcast(twice, 0);
        const Tensor four = twice + twice;
        Bytes expected = elements<float>(ReduceOp::sum, 0, 0, count);
        for (std::size_t i = 0; i < count; ++i) {
            float value = 0;
            std::memcpy(&value, expected.data() + i * sizeof value, sizeof value);
            value *= 4;
            std::memcpy(expected.data() + i * sizeof value, &value, sizeof value);
        }
        check("broadcast between operations" + where, four, expected);
    }

    void means() {
        const std::vector<std::int32_t> whole{-7 - rank_, 5 + rank_, rank_, -rank_};
        std::vector<std::int32_t> expected;
        const int ranks_sum = size_ * (size_ - 1) / 2;
        for (const int sum : {-7 * size_ - ranks_sum, 5 * size_ + ranks_sum, ranks_sum, -ranks_sum})
            expected.push_back(sum / size_);
        const Tensor integers = Tensor::from(whole, Shape{4});
        group_.all_reduce(integers, ReduceOp::mean);
        failures_.require(integers.to_vector<std::int32_t>() == expected, "mean of integers");
        const Tensor floats = Tensor::from(std::vector<float>{1.5F, static_cast<float>(rank_)}, Shape{2});
        group_.reduce(floats, size_ - 1, ReduceOp::mean);
        if (rank_ == size_ - 1)
            failures_.require(floats.to_vector<float>() ==
                                  std::vector<float>{1.5F, static_cast<float>(ranks_sum) / static_cast<float>(size_)},
                              "mean of floats");
    }

    /// Rank r has r + 1 rows; rank r sends (r + to) % 3 rows to rank `to`.
    void uneven() {
        std::vector<Tensor> parts, sums, sent, received;
        std::vector<std::int64_t> in_rows, out_rows;
        const auto rows = [](int from, int to) { return static_cast<std::int64_t>((from + to) % 3); };
        std::vector<float> in_values, out_values;
        for (int r = 0; r < size_; ++r) {
            parts.push_back(Tensor::full({r + 1, 2}, -1));
            sums.push_back(Tensor::full({2 * r, 3}, rank_ + r));
            in_rows.push_back(rows(rank_, r));
            out_rows.push_back(rows(r, rank_));
            sent.push_back(Tensor::full({in_rows.back(), 4}, rank_ * 10 + r));
            received.push_back(Tensor::full({out_rows.back(), 4}, -1));
            in_values.insert(in_values.end(), static_cast<std::size_t>(4 * in_rows.back()),
                             static_cast<float>(rank_ * 10 + r));
            out_values.insert(out_values.end(), static_cast<std::size_t>(4 * out_rows.back()),
                              static_cast<float>(r * 10 + rank_));
        }
        const auto all_are = [](const Tensor& tensor, double value) {
            const std::vector<float> values = tensor.to_vector<float>();
            return std::all_of(values.begin(), values.end(), [&](float x) { return x == static_cast<float>(value); });
        };
        group_.all_gather(parts, Tensor::full({rank_ + 1, 2}, rank_));
        for (int r = 0; r < size_; ++r)
            failures_.require(all_are(parts[static_cast<std::size_t>(r)], r), "uneven all_gather");
        const Tensor sum = Tensor::empty({2 * rank_, 3});
        group_.reduce_scatter(sum, sums);
        failures_.require(all_are(sum, size_ * rank_ + size_ * (size_ - 1) / 2), "uneven reduce_scatter");
        group_.all_to_all(received, sent);
        for (int r = 0; r < size_; ++r)
            failures_.require(all_are(received[static_cast<std::size_t>(r)], r * 10 + rank_), "all_to_all of lists");
        const auto rows_of = [](const std::vector<float>& values) {
            return static_cast<std::int64_t>(values.size()) / 4;
        };
        const Tensor out = Tensor::empty({rows_of(out_values), 4});
        group_.all_to_all(out, Tensor::from(in_values, Shape{rows_of(in_values), 4}), out_rows, in_rows);
        failures_.require(out.to_vector<float>() == out_values, "all_to_all of rows");
    }

    /// Many at once. Their handles are waited for backwards, dropped, or polled; a blocking call follows.
    void asynchronous() {
        std::vector<Tensor> tensors;
        std::vector<ProcessGroup::Work> works;
        for (int i = 0; i < 20; ++i) {
            tensors.push_back(Tensor::full({i * 500}, rank_ + i, i % 2 == 0 ? DType::f32 : DType::i64));
            works.push_back(group_.all_reduce_async(tensors.back(), i % 3 == 0 ? ReduceOp::max : ReduceOp::sum));
        }
        group_.all_reduce_async(Tensor::full({100000}, 1));  // dropped with its tensor
        const Tensor last = Tensor::full({3}, rank_);
        group_.broadcast(last, size_ - 1);
        failures_.require(last.to_vector<float>() == std::vector<float>(3, static_cast<float>(size_ - 1)),
                          "a blocking call after others");
        for (std::size_t i = works.size(); i-- > 0;) {
            failures_.require(works[i].done(), "a later call is done, an earlier one is not");
            works[i].wait();
            const int n = static_cast<int>(i);
            const int expected = i % 3 == 0 ? size_ - 1 + n : size_ * (size_ - 1) / 2 + size_ * n;
            if (i > 0)
                failures_.require(tensors[i].to(DType::f64).select(0, n).item() == expected, "asynchronous all_reduce");
        }
        const ProcessGroup::Work barrier = group_.barrier_async();
        while (!barrier.wait_for(std::chrono::milliseconds(100))) {
        }
    }

    /// All in flight before the first is waited for.
    void asynchronous_of_each_kind() {
        const int root = size_ - 1;
        const double mine = rank_ + 1, total = size_ * (size_ + 1) / 2.0;
        const auto value = [&](double x) { return Tensor::full({700}, x); };
        const auto one_per_rank = [&](double x) {
            std::vector<Tensor> list;
            for (int r = 0; r < size_; ++r) list.push_back(value(x));
            return list;
        };
        const Tensor reduced_sum = value(mine), sent = value(mine), scattered = value(-1), part = value(-1);
        const std::vector<Tensor> gathered = one_per_rank(-1), everywhere = one_per_rank(-1),
                                  exchanged = one_per_rank(-1);
        std::vector<Tensor> scattered_from;
        for (int r = 0; r < size_; ++r) scattered_from.push_back(value(10 * r));
        std::vector<ProcessGroup::Work> works;
        works.push_back(group_.reduce_async(reduced_sum, root));
        works.push_back(group_.broadcast_async(sent, root));
        works.push_back(group_.gather_async(value(mine), rank_ == root ? gathered : std::vector<Tensor>{}, root));
        works.push_back(group_.scatter_async(scattered, rank_ == root ? scattered_from : std::vector<Tensor>{}, root));
        works.push_back(group_.all_gather_async(everywhere, value(mine)));
        works.push_back(group_.reduce_scatter_async(part, one_per_rank(mine)));
        works.push_back(group_.all_to_all_async(exchanged, one_per_rank(mine)));
        for (const ProcessGroup::Work& work : works) work.wait();
        const auto is = [&](const std::string& what, const Tensor& tensor, double expected) {
            failures_.require(tensor.to_vector<float>() == std::vector<float>(700, static_cast<float>(expected)), what);
        };
        is("asynchronous reduce", reduced_sum, rank_ == root ? total : mine);
        is("asynchronous broadcast", sent, size_);
        is("asynchronous scatter", scattered, 10 * rank_);
        is("asynchronous reduce_scatter", part, total);
        for (int r = 0; r < size_; ++r) {
            const auto at = static_cast<std::size_t>(r);
            is("asynchronous all_gather", everywhere[at], r + 1);
            is("asynchronous all_to_all", exchanged[at], r + 1);
            is("asynchronous gather", gathered[at], rank_ == root ? r + 1 : -1);
        }
    }

    ProcessGroup& group_;
    Device device_;
    int rank_, size_;
    Failures failures_;
};

}  // namespace

std::vector<std::string> exercise_group(ProcessGroup& group, Device device) { return Exercise(group, device).run(); }

}  // namespace lockstep::test
