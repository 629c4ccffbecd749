#include "lockstep/parallel/communication_hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Divides first: the sum over many ranks could overflow f16.
CommunicationHook compressed(DType dtype, CommunicationHook hook) {
    return [dtype, hook = std::move(hook)](const GradientBucket& bucket, ProcessGroup& group) {
        const double ranks = group.size();
        const Tensor sum = hook(bucket.with((bucket.buffer() * (1 / ranks)).to(dtype)), group);
        return sum.to(bucket.buffer().dtype()) * ranks;
    };
}

}  // namespace

CommunicationHook all_reduce_hook() {
    return [](const GradientBucket& bucket, ProcessGroup& group) {
        group.all_reduce(bucket.buffer());
        return bucket.buffer();
    };
}

CommunicationHook fp16_compress_wrapper(CommunicationHook hook) { return compressed(DType::f16, std::move(hook)); }
CommunicationHook bf16_compress_wrapper(CommunicationHook hook) { return compressed(DType::bf16, std::move(hook)); }
CommunicationHook fp16_compress_hook() { return fp16_compress_wrapper(all_reduce_hook()); }
CommunicationHook bf16_compress_hook() { return bf16_compress_wrapper(all_reduce_hook()); }

namespace {

/// Makes the columns of a row-major f32 matrix orthonormal, one after the other (Gram-Schmidt). A column that depends
/// on previous ones becomes zero and adds nothing to the product.
void orthonormalize(const Tensor& matrix) {
    const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
    auto* const values = matrix.data<float>();
    const auto product = [&](std::int64_t a, std::int64_t b) {
        double sum = 0;
        for (std::int64_t r = 0; r < rows; ++r)
            sum += static_cast<double>(values[r * columns + a]) * static_cast<double>(values[r * columns + b]);
        return sum;
    };
    for (std::int64_t c = 0; c < columns; ++c) {
        const double before = product(c, c);
        for (std::int64_t other = 0; other < c; ++other) {
            const auto along = static_cast<float>(product(c, other));
            for (std::int64_t r = 0; r < rows; ++r) values[r * columns + c] -= along * values[r * columns + other];
        }
        constexpr double rounding = 1e-10;  // squared rounding error of f32
        const double after = product(c, c);
        const auto factor = static_cast<float>(after > rounding * before ? 1 / std::sqrt(after) : 0);
        for (std::int64_t r = 0; r < rows; ++r) values[r * columns + c] *= factor;
    }
}

/// Number of rows of the matrix that represents a part of a bucket; 1: not a matrix.
std::int64_t rows_of(const GradientBucket::Part& part) {
    if (part.whole) return part.shape.dims() > 1 ? part.shape[0] : 1;
    auto rows = static_cast<std::int64_t>(std::sqrt(static_cast<double>(part.end - part.begin)));
    while ((part.end - part.begin) % rows != 0) --rows;
    return rows;
}

class PowerSgd {
public:
    explicit PowerSgd(const PowerSgdOptions& options) : options_(options), random_(options.seed) {}

    Tensor sum(const GradientBucket& bucket, ProcessGroup& group) {
        const bool plain = iteration_ < options_.start_iteration;
        if (bucket.is_last()) ++iteration_;
        if (plain) return all_reduce_hook()(bucket, group);
        State& state = states_[bucket.index()];
        if (state.elements != bucket.buffer().numel()) {  // different parameters: the stored state does not apply
            state = State();
            state.elements = bucket.buffer().numel();
        }
        const Tensor values = bucket.buffer().to(DType::f32);
        if (state.lost.defined()) values.copy_(values + state.lost);
        const Tensor own = options_.use_error_feedback ? values.clone() : Tensor();
        approximate(bucket, values, state, group);
        if (own.defined()) state.lost = own - values * (1.0 / group.size());
        return values.to(bucket.buffer().dtype());
    }

private:
    struct Matrix {
        std::int64_t begin, rows, columns, rank;  ///< begin: element of the bucket
        Tensor values = {}, p = {}, q = {};       ///< views of the bucket, and of the sent data
    };
    /// State of a bucket, from one backward to the next.
    struct State {
        std::int64_t elements = 0;
        Tensor q;  ///< concatenated q of all matrices
        Tensor lost;
    };

    /// Replaces this rank's `values` of a bucket by the approximate sum over all ranks.
    void approximate(const GradientBucket& bucket, const Tensor& values, State& state, ProcessGroup& group) {
        std::vector<Matrix> matrices;
        std::vector<Tensor> vectors;
        std::int64_t p_size = 0, q_size = 0;
        for (const GradientBucket::Part& part : bucket.parts()) {
            Matrix m{.begin = part.begin, .rows = rows_of(part), .columns = 0, .rank = options_.rank};
            m.columns = (part.end - part.begin) / m.rows;
            m.rank = std::min({m.rank, m.rows, m.columns});
            m.values = values.slice(0, part.begin, part.end);
            const auto sent = static_cast<double>((m.rows + m.columns) * m.rank);
            if (m.rows == 1 || sent * options_.min_compression_rate >= static_cast<double>(m.values.numel())) {
                vectors.push_back(m.values);
                continue;
            }
            p_size += m.rows * m.rank;
            q_size += m.columns * m.rank;
            matrices.push_back(std::move(m));
        }
        if (!vectors.empty()) {
            const Tensor all = cat(vectors);
            group.all_reduce(all);
            std::int64_t begin = 0;
            for (const Tensor& vector : vectors) {
                vector.copy_(all.slice(0, begin, begin + vector.numel()));
                begin += vector.numel();
            }
        }
        if (matrices.empty()) return;

        if (!options_.warm_start || !state.q.defined()) state.q = random(q_size);
        const Tensor p = Tensor::empty({p_size});
        p_size = q_size = 0;
        for (Matrix& m : matrices) {
            m.values = m.values.reshape({m.rows, m.columns});
            m.p = p.slice(0, p_size, p_size + m.rows * m.rank).reshape({m.rows, m.rank});
            m.q = state.q.slice(0, q_size, q_size + m.columns * m.rank).reshape({m.columns, m.rank});
            p_size += m.rows * m.rank;
            q_size += m.columns * m.rank;
            orthonormalize(m.q);
            m.p.copy_(matmul(m.values, m.q));
        }
        group.all_reduce(p);
        for (const Matrix& m : matrices) {
            orthonormalize(m.p);
            m.q.copy_(matmul(m.values.transpose(0, 1), m.p));
        }
        group.all_reduce(state.q);
        for (const Matrix& m : matrices) m.values.copy_(matmul(m.p, m.q.transpose(0, 1)));
    }

    /// Equal on all ranks.
    Tensor random(std::int64_t elements) {
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<std::size_t>(elements));
        for (float& value : values) value = normal(random_);
        return Tensor::from(values, Shape{elements});
    }

    PowerSgdOptions options_;
    std::mt19937_64 random_;
    int iteration_ = 0;
    std::map<int, State> states_;  ///< by bucket
};

}  // namespace

CommunicationHook power_sgd_hook(const PowerSgdOptions& options) {
    if (options.rank < 1) throw InvalidArgument(fmt::format("PowerSGD: rank {}; expected at least 1", options.rank));
    if (!(options.min_compression_rate > 0))
        throw InvalidArgument(fmt::format("PowerSGD: a minimum compression rate of {}; expected a positive number",
                                          options.min_compression_rate));
    if (options.start_iteration < 2 && (options.use_error_feedback || options.warm_start))
        throw InvalidArgument(fmt::format(
            "PowerSGD: start_iteration is {}; expected at least 2, or neither error feedback nor warm start",
            options.start_iteration));
    return [state = std::make_shared<PowerSgd>(options)](const GradientBucket& bucket, ProcessGroup& group) {
        return state->sum(bucket, group);
    };
}

}  // namespace lockstep
